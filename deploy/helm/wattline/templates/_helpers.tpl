{{- define "wattline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "wattline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "wattline.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "wattline.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "wattline.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "wattline.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "wattline.selectorLabels" -}}
app.kubernetes.io/name: {{ include "wattline.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "wattline.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "wattline.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "wattline.image" -}}
{{- $repository := required "image.repository is empty: name the registry and repository of the exporter's image" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- /* "true" when processes are to be looked at: only then the host's process ids are needed. */ -}}
{{- define "wattline.discovers" -}}
{{- range .Values.config.deployments -}}
{{- $engines := toString .engines -}}
{{- $gpus := toString (default "all" .gpus) -}}
{{- if or (eq $engines "auto") (eq $gpus "auto") (and (eq $engines "pods") (ne $gpus "all")) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* "true" when the API server is asked for pods. */ -}}
{{- define "wattline.asks" -}}
{{- range .Values.config.deployments -}}
{{- if eq (toString .engines) "pods" -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* The job is what the rules ask for; the instance outlives the pod. */ -}}
{{- define "wattline.relabelings" -}}
- targetLabel: job
  replacement: wattline
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: instance
{{- with .relabelings }}
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{- define "wattline.endpoint" -}}
port: metrics
path: /metrics
honorLabels: true
interval: {{ .monitor.interval }}
scrapeTimeout: {{ .monitor.scrapeTimeout }}
{{- if .tls }}
scheme: https
{{- end }}
{{- with .monitor.tlsConfig }}
tlsConfig:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .monitor.basicAuth }}
basicAuth:
  {{- toYaml . | nindent 2 }}
{{- end }}
relabelings:
  {{- include "wattline.relabelings" .monitor | nindent 2 }}
{{- with .monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
