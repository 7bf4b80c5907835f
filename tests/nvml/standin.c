/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1 that answers what a control file says. See README.md beside this file.
 *
 * The control file is read again whenever it changes, so that a test steers a library that is already loaded. Every
 * call is counted, in a file that other processes can map.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10, LIBRARY_NOT_FOUND = 12,
};
enum { MAX_GPUS = 64, MAX_RULES = 1024, MAX_COUNTS = 8192, SAMPLES = 119, ANY_GPU = -1, HOST = -2 };

typedef unsigned int nvmlReturn_t;
typedef union {
    double d; unsigned ui; unsigned long ul; unsigned long long ull; long long sll; int si; unsigned short us;
} value_t;
typedef struct { int gpu; unsigned generation; } handle_t;
typedef struct { int gpu; double taken_at; } gpm_sample_t;

typedef struct {
    int gpu;
    char call[64];
    char *value;
    int error, hang, type, rate, chance;
    long delay_us, spin_us, per_second;
} rule_t;

typedef struct { char key[56]; uint64_t count; } count_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rule_t rules[MAX_RULES];
static int rule_count;
static struct stat loaded;
static unsigned loads;
static char loaded_path[1024];
static count_t *counts, private_counts[MAX_COUNTS];
static struct { uint32_t load, calls; } places[MAX_COUNTS];
static char counts_path[1024];
static int initialised, inside;
static unsigned generation;
static handle_t *handles;
static int registered[MAX_GPUS];
static size_t next_event;
static unsigned event_load;

/* Control file. */

static char *token(char **text)
{
    char *p = *text, *start, *out;
    while (*p == ' ' || *p == '\t') p++;
    if (!*p || *p == '#') return NULL;
    start = out = p;
    for (int quoted = 0; *p && (quoted || (*p != ' ' && *p != '\t')); p++) {
        if (*p == '"') quoted = !quoted;
        else *out++ = *p;
    }
    *text = *p ? p + 1 : p;
    *out = 0;
    return start;
}

static void parse(char *line)
{
    char *gpu = token(&line), *call = gpu ? token(&line) : NULL, *pair;
    if (!call || rule_count == MAX_RULES) return;
    rule_t *rule = &rules[rule_count++];
    *rule = (rule_t){.error = -1, .hang = -1, .type = -1, .rate = -1, .chance = -1};
    rule->delay_us = rule->spin_us = rule->per_second = -1;
    rule->gpu = !strcmp(gpu, "*") ? ANY_GPU : !strcmp(gpu, "-") ? HOST : atoi(gpu);
    snprintf(rule->call, sizeof rule->call, "%s", call);
    while ((pair = token(&line))) {
        char *value = strchr(pair, '=');
        if (!value) { fprintf(stderr, "stand-in: not key=value: %s\n", pair); abort(); }
        *value++ = 0;
        if (!strcmp(pair, "value")) rule->value = strdup(value);
        else if (!strcmp(pair, "error")) rule->error = atoi(value);
        else if (!strcmp(pair, "hang")) rule->hang = atoi(value);
        else if (!strcmp(pair, "type")) rule->type = atoi(value);
        else if (!strcmp(pair, "rate")) rule->rate = atoi(value);
        else if (!strcmp(pair, "delay_us")) rule->delay_us = atol(value);
        else if (!strcmp(pair, "spin_us")) rule->spin_us = atol(value);
        else if (!strcmp(pair, "chance")) rule->chance = atoi(value);
        else if (!strcmp(pair, "per_second")) rule->per_second = atol(value);
        else { fprintf(stderr, "stand-in: unknown key: %s\n", pair); abort(); }
    }
}

static void reload(void)
{
    const char *path = getenv("NVML_STANDIN_CONTROL");
    struct stat now = {0};
    if (!path || stat(path, &now)) { rule_count = 0; loaded_path[0] = 0; return; }
    if (!strcmp(path, loaded_path) && now.st_ino == loaded.st_ino && now.st_size == loaded.st_size &&
        now.st_mtim.tv_sec == loaded.st_mtim.tv_sec && now.st_mtim.tv_nsec == loaded.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    for (int i = 0; i < rule_count; i++) free(rules[i].value);
    rule_count = 0;
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        parse(line);
    }
    free(line);
    fclose(file);
    loaded = now;
    loads++;
    snprintf(loaded_path, sizeof loaded_path, "%s", path);
}

static int matches(const rule_t *rule, int gpu, const char *call)
{
    size_t length = strlen(rule->call);
    if (rule->gpu != gpu && !(rule->gpu == ANY_GPU && gpu >= 0)) return 0;
    if (rule->chance >= 0 && rand() % 100 >= rule->chance) return 0;
    if (length && rule->call[length - 1] == '*') return !strncmp(rule->call, call, length - 1);
    return !strcmp(rule->call, call);
}

/* Later lines win, key by key: a line that sets a value or an error takes the other one back. */
static rule_t look_up(int gpu, const char *call)
{
    rule_t found = {.error = -1, .type = 1};
    for (int i = 0; i < rule_count; i++) {
        const rule_t *rule = &rules[i];
        if (!matches(rule, gpu, call)) continue;
        if (rule->value) { found.value = rule->value; found.error = -1; }
        if (rule->error >= 0) { found.error = rule->error; found.value = NULL; }
        if (rule->hang >= 0) found.hang = rule->hang;
        if (rule->type >= 0) found.type = rule->type;
        if (rule->rate >= 0) found.rate = rule->rate;
        if (rule->delay_us >= 0) found.delay_us = rule->delay_us;
        if (rule->spin_us >= 0) found.spin_us = rule->spin_us;
        if (rule->per_second >= 0) found.per_second = rule->per_second;
    }
    return found;
}

/* Counts. */

static void open_counts(void)
{
    const char *path = getenv("NVML_STANDIN_COUNTS");
    if (counts && !strcmp(path ? path : "", counts_path)) return;
    counts = private_counts;
    snprintf(counts_path, sizeof counts_path, "%s", path ? path : "");
    memset(private_counts, 0, sizeof private_counts);
    memset(places, 0, sizeof places);
    if (!path) return;
    int fd = open(path, O_RDWR | O_CREAT, 0644);
    if (fd < 0 || ftruncate(fd, sizeof private_counts)) { perror(path); abort(); }
    void *map = mmap(NULL, sizeof private_counts, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) { perror(path); abort(); }
    counts = map;
}

/* Count a call and return how many there were before it since the control file was read. */
static unsigned count(int gpu, const char *call)
{
    char key[56] = {0};
    if (gpu >= 0) snprintf(key, sizeof key, "%d %s", gpu, call);
    else snprintf(key, sizeof key, "- %s", call);
    unsigned hash = 5381;
    for (const char *p = key; *p; p++) hash = hash * 33 + (unsigned char)*p;
    for (unsigned i = hash % MAX_COUNTS;; i = (i + 1) % MAX_COUNTS) {
        if (!counts[i].key[0]) memcpy(counts[i].key, key, sizeof key);
        if (strcmp(counts[i].key, key)) continue;
        counts[i].count++;
        if (places[i].load != loads) { places[i].load = loads; places[i].calls = 0; }
        return places[i].calls++;
    }
}

/* Answers. */

typedef struct { nvmlReturn_t code; char text[4096]; int type, rate; } answer_t;

static double real_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* The seconds in the file that NVML_STANDIN_CLOCK names, as a double, where there is one. */
static double now(void)
{
    static char clock_path[1024];
    static const double *seconds;
    const char *path = getenv("NVML_STANDIN_CLOCK");
    if (!path) return real_now();
    if (!seconds || strcmp(path, clock_path)) {
        int fd = open(path, O_RDONLY);
        void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) { perror(path); abort(); }
        close(fd);
        seconds = map;
        snprintf(clock_path, sizeof clock_path, "%s", path);
    }
    return *seconds;
}

static void pass(long delay_us, long spin_us)
{
    if (delay_us > 0) {
        struct timespec t = {delay_us / 1000000, delay_us % 1000000 * 1000};
        nanosleep(&t, NULL);
    }
    if (spin_us > 0) for (double end = real_now() + spin_us * 1e-6; real_now() < end;) ;
}

static void pick(const char *list, unsigned n, char *out, size_t size)
{
    const char *end;
    while ((end = strchr(list, ',')) && n--) list = end + 1;
    end = strchrnul(list, ',');
    snprintf(out, size, "%.*s", (int)(end - list), list);
}

/*
 * Count a call, wait as told, and say what the control file says. The lock is never held while waiting.
 * whole: the answer is the whole list, not the next element of it. unsaid: the code where the file says nothing.
 */
static answer_t answer(int gpu, nvmlReturn_t unsaid, int whole, const char *format, ...)
{
    char call[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call, sizeof call, format, arguments);
    va_end(arguments);

    answer_t result = {0};
    pthread_mutex_lock(&lock);
    open_counts();
    reload();
    unsigned before = count(gpu, call);
    if (inside) count(HOST, "calls at once");
    inside++;
    rule_t rule = look_up(gpu, call);
    long delay = rule.delay_us, spin = rule.spin_us;
    while (rule.hang) {
        pthread_mutex_unlock(&lock);
        usleep(2000);
        pthread_mutex_lock(&lock);
        reload();
        rule = look_up(gpu, call);
    }
    if (delay > 0 || spin > 0) {
        pthread_mutex_unlock(&lock);
        pass(delay, spin);
        pthread_mutex_lock(&lock);
        reload();
        rule = look_up(gpu, call);
    }
    result.type = rule.type;
    result.rate = rule.rate;
    if (rule.error >= 0) result.code = rule.error;
    else if (!rule.value) result.code = rule.rate ? SUCCESS : unsaid;
    else if (whole) snprintf(result.text, sizeof result.text, "%s", rule.value);
    else pick(rule.value, before, result.text, sizeof result.text);
    if (!whole && result.text[0] == 'E' && isdigit((unsigned char)result.text[1])) result.code = atoi(result.text + 1);
    else if (rule.per_second) {
        long long grown = atoll(result.text) + (long long)(rule.per_second * now());
        snprintf(result.text, sizeof result.text, "%lld", grown);
    }
    inside--;
    pthread_mutex_unlock(&lock);
    return result;
}

static void note(const char *event)
{
    pthread_mutex_lock(&lock);
    open_counts();
    count(HOST, event);
    pthread_mutex_unlock(&lock);
}

static nvmlReturn_t check(const handle_t *handle)
{
    if (!initialised) return UNINITIALIZED;
    if (!handle) return INVALID_ARGUMENT;
    if (handle->generation != generation) { note("stale handle"); return INVALID_ARGUMENT; }
    return SUCCESS;
}

#define NEED(handle) do { nvmlReturn_t bad = check(handle); if (bad) return bad; } while (0)

/* The n-th number of "1:2:3". */
static unsigned long long part(const char *text, int n)
{
    while (n-- && (text = strchr(text, ':'))) text++;
    return text ? strtoull(text, NULL, 0) : 0;
}

/* Library. */

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    const char *path = getenv("NVML_STANDIN_CONTROL");
    if (!path || access(path, R_OK)) return LIBRARY_NOT_FOUND; /* Nobody steers: as without a library. */
    answer_t a = answer(HOST, SUCCESS, 0, "nvmlInit");
    if (a.code) return a.code;
    pthread_mutex_lock(&lock);
    if (!initialised++) {
        generation++;
        handles = calloc(MAX_GPUS, sizeof *handles); /* Kept for ever: old handles must be seen to be old. */
        for (int i = 0; i < MAX_GPUS; i++) handles[i] = (handle_t){i, generation};
        memset(registered, 0, sizeof registered);
    }
    pthread_mutex_unlock(&lock);
    note("init succeeded");
    return SUCCESS;
}
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void)
{
    if (inside) note("shutdown while inside");
    answer_t a = answer(HOST, SUCCESS, 0, "nvmlShutdown");
    if (a.code) return a.code;
    pthread_mutex_lock(&lock);
    int was = initialised;
    if (initialised) initialised--;
    pthread_mutex_unlock(&lock);
    return was ? SUCCESS : UNINITIALIZED;
}

const char *nvmlErrorString(nvmlReturn_t code) { (void)code; return "stand-in error"; }

static nvmlReturn_t text(answer_t a, char *out, unsigned length)
{
    if (!a.code) snprintf(out, length, "%s", a.text);
    return a.code;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    if (!initialised) return UNINITIALIZED;
    return text(answer(HOST, SUCCESS, 0, "nvmlSystemGetDriverVersion"), out, length);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out)
{
    if (!initialised) return UNINITIALIZED;
    answer_t a = answer(HOST, SUCCESS, 0, "nvmlDeviceGetCount");
    if (!a.code) *out = atoi(a.text);
    return a.code;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, handle_t **out)
{
    if (!initialised) return UNINITIALIZED;
    answer_t order = answer(HOST, SUCCESS, 0, "order");
    int gpu = order.text[0] ? (int)part(order.text, index) : (int)index;
    if (gpu < 0 || gpu >= MAX_GPUS) return INVALID_ARGUMENT;
    answer_t a = answer(gpu, SUCCESS, 0, "nvmlDeviceGetHandleByIndex");
    if (a.code) return a.code;
    *out = &handles[gpu];
    return SUCCESS;
}

/* Texts and numbers of one GPU. */

#define TEXT(name) \
    nvmlReturn_t name(handle_t *h, char *out, unsigned length) \
    { NEED(h); return text(answer(h->gpu, NOT_SUPPORTED, 0, #name), out, length); }
TEXT(nvmlDeviceGetUUID)
TEXT(nvmlDeviceGetName)

#define NUMBER(name, type) \
    nvmlReturn_t name(handle_t *h, type *out) \
    { \
        NEED(h); \
        answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, #name); \
        if (!a.code) *out = part(a.text, 0); \
        return a.code; \
    }
NUMBER(nvmlDeviceGetPowerUsage, unsigned)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned)
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned)
NUMBER(nvmlDeviceGetArchitecture, unsigned)
NUMBER(nvmlDeviceGetVirtualizationMode, unsigned)

#define NUMBERED(name, type) \
    nvmlReturn_t name(handle_t *h, unsigned which, type *out) \
    { \
        NEED(h); \
        answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, #name ".%u", which); \
        if (!a.code) *out = part(a.text, 0); \
        return a.code; \
    }
NUMBERED(nvmlDeviceGetClockInfo, unsigned)
NUMBERED(nvmlDeviceGetMaxClockInfo, unsigned)
NUMBERED(nvmlDeviceGetTemperature, unsigned)
NUMBERED(nvmlDeviceGetPcieThroughput, unsigned)
NUMBERED(nvmlDeviceGetNvLinkState, unsigned)

#define PAIR(name) \
    nvmlReturn_t name(handle_t *h, unsigned *first, unsigned *second) \
    { \
        NEED(h); \
        answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, #name); \
        if (!a.code) { *first = part(a.text, 0); *second = part(a.text, 1); } \
        return a.code; \
    }
PAIR(nvmlDeviceGetPowerManagementLimitConstraints)
PAIR(nvmlDeviceGetMigMode)

nvmlReturn_t nvmlDeviceGetUtilizationRates(handle_t *h, unsigned out[2])
{
    NEED(h);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, "nvmlDeviceGetUtilizationRates");
    if (!a.code) { out[0] = part(a.text, 0); out[1] = part(a.text, 1); }
    return a.code;
}

typedef struct { unsigned version, sensor; int celsius; } temperature_t;

nvmlReturn_t nvmlDeviceGetTemperatureV(handle_t *h, temperature_t *out)
{
    NEED(h);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, "nvmlDeviceGetTemperatureV");
    if (!a.code) out->celsius = atoi(a.text);
    return a.code;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(handle_t *h, char *out)
{
    NEED(h);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, "nvmlDeviceGetPciInfo");
    if (!a.code) { memset(out, 0, 68); snprintf(out + 36, 32, "%.31s", a.text); }
    return a.code;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(handle_t *h, unsigned long long out[3])
{
    NEED(h);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, "nvmlDeviceGetMemoryInfo"); /* total:free:used */
    if (!a.code) for (int i = 0; i < 3; i++) out[i] = part(a.text, i);
    return a.code;
}

typedef struct { unsigned version; unsigned long long value[4]; } memory_v2_t;

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(handle_t *h, memory_v2_t *out)
{
    NEED(h);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, "nvmlDeviceGetMemoryInfo_v2"); /* total:reserved:free:used */
    if (!a.code) for (int i = 0; i < 4; i++) out->value[i] = part(a.text, i);
    return a.code;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(handle_t *h, handle_t *other, unsigned index, unsigned *out)
{
    (void)index;
    NEED(h);
    NEED(other);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, "nvmlDeviceGetP2PStatus.%d", other->gpu);
    if (!a.code) *out = part(a.text, 0);
    return a.code;
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process_t;

static nvmlReturn_t processes(const char *call, handle_t *h, unsigned *size, process_t *out)
{
    NEED(h);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 1, "%s", call); /* pid:bytes,pid:bytes; "none" for none */
    if (a.code) return a.code;
    unsigned found = 0, room = *size;
    char *rest = a.text, *one;
    while (strcmp(a.text, "none") && (one = strsep(&rest, ","))) {
        if (found < room && out) out[found] = (process_t){part(one, 0), part(one, 1), ~0u, ~0u};
        found++;
    }
    *size = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(handle_t *h, unsigned *size, process_t *out)
{ return processes("nvmlDeviceGetComputeRunningProcesses", h, size, out); }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(handle_t *h, unsigned *size, process_t *out)
{ return processes("nvmlDeviceGetComputeRunningProcesses_v2", h, size, out); }

/* Values with a type of their own. */

static void put(value_t *out, int type, const char *text)
{
    memset(out, 0, sizeof *out);
    switch (type) {
    case 0: out->d = strtod(text, NULL); break;
    case 1: out->ui = strtoul(text, NULL, 0); break;
    case 2: out->ul = strtoul(text, NULL, 0); break;
    case 3: out->ull = strtoull(text, NULL, 0); break;
    case 4: out->sll = strtoll(text, NULL, 0); break;
    case 5: out->si = strtol(text, NULL, 0); break;
    case 6: out->us = strtoul(text, NULL, 0); break;
    default: out->ull = strtoull(text, NULL, 0);
    }
}

typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    unsigned type;
    nvmlReturn_t code;
    value_t value;
} field_t;

nvmlReturn_t nvmlDeviceGetFieldValues(handle_t *h, int size, field_t *fields)
{
    NEED(h);
    answer_t outer = answer(h->gpu, SUCCESS, 0, "nvmlDeviceGetFieldValues");
    if (outer.code) return outer.code;
    for (int i = 0; i < size; i++) {
        answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, "field.%u.%u", fields[i].field, fields[i].scope);
        fields[i].code = a.code;
        fields[i].type = a.type;
        put(&fields[i].value, a.type, a.code ? "0" : a.text);
    }
    return SUCCESS;
}

typedef struct { unsigned long long stamp; value_t value; } sample_t;

/* The value is the whole buffer, stamp:value,stamp:value; or rate=N makes N a second out of the power usage. */
nvmlReturn_t nvmlDeviceGetSamples(handle_t *h, unsigned type, unsigned long long since, unsigned *value_type,
                                  unsigned *size, sample_t *out)
{
    NEED(h);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 1, "nvmlDeviceGetSamples.%u", type);
    if (a.code) return a.code;
    *value_type = a.type;
    unsigned found = 0, room = *size;
    if (a.text[0]) {
        char *rest = a.text, *one;
        while ((one = strsep(&rest, ","))) {
            char *value = strchr(one, ':');
            if (!value || part(one, 0) <= since) continue;
            if (out && found < room) { out[found].stamp = part(one, 0); put(&out[found].value, a.type, value + 1); }
            found++;
        }
    } else {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        unsigned long long period = 1000000 / a.rate, last = (t.tv_sec * 1000000ull + t.tv_nsec / 1000) / period;
        char watts[64] = "0";
        pthread_mutex_lock(&lock);
        rule_t power = look_up(h->gpu, "nvmlDeviceGetPowerUsage");
        if (power.value) pick(power.value, 0, watts, sizeof watts);
        pthread_mutex_unlock(&lock);
        for (unsigned long long n = last - SAMPLES + 1; n <= last; n++) {
            if (n * period <= since) continue;
            if (out && found < room) { out[found].stamp = n * period; put(&out[found].value, a.type, watts); }
            found++;
        }
    }
    if (!found) return NOT_FOUND;
    if (out && found > room) return INSUFFICIENT_SIZE;
    *size = found;
    return SUCCESS;
}

/* GPU performance monitoring. */

nvmlReturn_t nvmlGpmQueryDeviceSupport(handle_t *h, unsigned out[2])
{
    NEED(h);
    answer_t a = answer(h->gpu, NOT_SUPPORTED, 0, "nvmlGpmQueryDeviceSupport");
    if (!a.code) out[1] = part(a.text, 0);
    return a.code;
}

nvmlReturn_t nvmlGpmSampleAlloc(gpm_sample_t **out)
{
    answer_t a = answer(HOST, SUCCESS, 0, "nvmlGpmSampleAlloc");
    if (a.code) return a.code;
    *out = calloc(1, sizeof **out);
    (*out)->gpu = -1;
    return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleFree(gpm_sample_t *sample)
{
    answer_t a = answer(HOST, SUCCESS, 0, "nvmlGpmSampleFree");
    free(sample);
    return a.code;
}

nvmlReturn_t nvmlGpmSampleGet(handle_t *h, gpm_sample_t *sample)
{
    NEED(h);
    answer_t a = answer(h->gpu, SUCCESS, 0, "nvmlGpmSampleGet");
    if (a.code) return a.code;
    *sample = (gpm_sample_t){h->gpu, now()};
    return SUCCESS;
}

typedef struct { unsigned id; nvmlReturn_t code; double value; char *names[3]; } metric_t;

typedef struct { unsigned version, size; gpm_sample_t *first, *second; metric_t metrics[]; } metrics_get_t;

nvmlReturn_t nvmlGpmMetricsGet(metrics_get_t *get)
{
    if (!initialised) return UNINITIALIZED;
    if (get->version != 1 || get->first->gpu < 0 || get->first->gpu != get->second->gpu) return INVALID_ARGUMENT;
    if (get->second->taken_at - get->first->taken_at < 0.1) { note("gpm samples too close"); return INVALID_ARGUMENT; }
    answer_t outer = answer(get->first->gpu, SUCCESS, 0, "nvmlGpmMetricsGet");
    if (outer.code) return outer.code;
    for (unsigned i = 0; i < get->size; i++) {
        answer_t a = answer(get->first->gpu, NOT_SUPPORTED, 0, "gpm.%u", get->metrics[i].id);
        get->metrics[i].code = a.code;
        get->metrics[i].value = a.code ? 0 : strtod(a.text, NULL);
    }
    return SUCCESS;
}

/* Events. */

nvmlReturn_t nvmlEventSetCreate(void **set)
{
    answer_t a = answer(HOST, SUCCESS, 0, "nvmlEventSetCreate");
    if (!a.code) *set = malloc(1);
    return a.code;
}

nvmlReturn_t nvmlEventSetFree(void *set)
{
    answer_t a = answer(HOST, SUCCESS, 0, "nvmlEventSetFree");
    free(set);
    return a.code;
}

nvmlReturn_t nvmlDeviceRegisterEvents(handle_t *h, unsigned long long types, void *set)
{
    (void)types;
    (void)set;
    NEED(h);
    answer_t a = answer(h->gpu, SUCCESS, 0, "nvmlDeviceRegisterEvents");
    if (a.code) return a.code;
    registered[h->gpu] = 1;
    return SUCCESS;
}

typedef struct { handle_t *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;

/* The value is gpu:xid,gpu:xid: each comes once for every time the file is read. */
nvmlReturn_t nvmlEventSetWait_v2(void *set, event_t *out, unsigned timeout_ms)
{
    (void)set;
    (void)timeout_ms;
    if (!initialised) return UNINITIALIZED;
    answer_t a = answer(HOST, SUCCESS, 1, "nvmlEventSetWait_v2");
    if (a.code) return a.code;
    pthread_mutex_lock(&lock);
    if (event_load != loads) { event_load = loads; next_event = 0; }
    char *rest = a.text, *one = NULL;
    nvmlReturn_t code = TIMEOUT;
    for (size_t n = 0; code == TIMEOUT && a.text[0] && (one = strsep(&rest, ",")); n++) {
        if (n < next_event) continue;
        next_event++;
        int gpu = (int)part(one, 0);
        if (!registered[gpu]) continue;
        *out = (event_t){&handles[gpu], 0x8, part(one, 1), ~0u, ~0u};
        code = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return code;
}
