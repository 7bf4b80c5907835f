"""YAML files whose mistakes are told with file, line and key.

A file is read by the core rules of YAML 1.2: only ``true`` and ``false`` are truth values, numbers are decimal, and
everything else is text. So ``on``, ``012`` or ``1:30`` are never silently something else.

This module imports nothing of ours.
"""

from __future__ import annotations

import difflib
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import yaml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""Where a value stands: ``("deployments", 0, "name")``."""

MAX_BYTES = 1_000_000
MAX_VALUES = 50_000
"""Aliases may repeat a part many times; this many values are enough for any real file."""
MAX_DEPTH = 20

_NUMBER_WORDS = {"int": "a whole number", "float": "a number"}
_TYPE_WORDS = {
    **_NUMBER_WORDS,
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "keys with values",
    "null": "nothing",
}


class UsageError(Exception):
    """Something that was asked for cannot be done; the message is for who asked, and needs no traceback."""


class ConfigError(UsageError):
    """A file cannot be used; the message is for its author and needs no traceback.

    Args:
        filename: the file, as it was named.
        problem: what was found and what was expected; free of secrets.
        line: counted from 1; ``None`` when the file as a whole is meant.
        path: the key in dotted form, empty for the whole file.
    """

    def __init__(self, filename: str, problem: str, *, line: int | None = None, path: str = "") -> None:
        place = filename if line is None else f"{filename}:{line}"
        super().__init__(f"{place}: {path}: {problem}" if path else f"{place}: {problem}")
        self.filename = filename
        self.problem = problem
        self.line = line
        self.path = path


class _Loader(yaml.SafeLoader):
    """Composes nodes; which plain text is a number or a truth value is decided by the table below."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - as the base class has it


_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_LITERALS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
_TAG = "tag:yaml.org,2002:"


def read_text(filename: str | Path) -> str:
    """The text of a file.

    Raises:
        ConfigError: it is missing, unreadable, too large or not UTF-8.
    """
    name = str(filename)
    try:
        with Path(filename).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(name, f"cannot be read: {reason[0].lower()}{reason[1:]}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(name, f"is larger than {MAX_BYTES} bytes, which no configuration is")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(name, f"byte 0x{data[error.start]:02x} is not UTF-8 text", line=line) from None


class Document:
    """The values of a YAML file, and on which line each stands. An empty file has none.

    Args:
        text: the file.
        filename: named in every error.
        secret: top-level keys below which a value is never quoted in an error.

    Raises:
        ConfigError: the text is not YAML, repeats a key, or is no mapping.
    """

    def __init__(self, text: str, filename: str, secret: Collection[str] = ()) -> None:
        self.filename = filename
        self._secret = secret
        self._lines: dict[KeyPath, int] = {}
        self._values = 0
        node = self._compose(text)
        self.data: dict[str, Any] = {}
        if node is not None and (data := self._build(node, ())) is not None:
            if not isinstance(data, dict):
                raise self.error((), f"expected keys with values, found {_found(data)}")
            self.data = data

    def error(self, path: KeyPath, problem: str) -> ConfigError:
        """An error at a key, or at the nearest key above it that the file has."""
        known = path
        while known and known not in self._lines:
            known = known[:-1]
        return ConfigError(self.filename, problem, line=self._lines.get(known), path=dotted(path))

    def found(self, path: KeyPath) -> str:
        """The value at a key, in words fit for an error."""
        if path and path[0] in self._secret:
            return "something else (not shown)"
        value: Any = self.data
        for key in path:
            value = value[key]
        return _found(value)

    def convert(self, type_: type[T]) -> T:
        """The values as a msgspec structure.

        Raises:
            ConfigError: a key is unknown or missing, or a value has the wrong type or range.
        """
        try:
            return msgspec.convert(self.data, type_)
        except msgspec.ValidationError as error:
            raise self._explain(str(error), type_) from None

    def _compose(self, text: str) -> yaml.Node | None:
        try:
            return yaml.compose(text, Loader=_Loader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else None
            began = error.context_mark.line + 1 if error.context_mark else line
            context = error.context if began == line or not error.context else f"{error.context} of line {began}"
            said = ", ".join(part for part in (context, error.problem) if part)
            raise ConfigError(self.filename, f"is not valid YAML: {said}", line=line) from None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            problem = f"character {chr(error.character)!r} is not allowed in YAML"
            raise ConfigError(self.filename, problem, line=line) from None
        except RecursionError:
            raise ConfigError(self.filename, "is nested too deeply") from None

    def _build(self, node: yaml.Node, path: KeyPath) -> Any:  # noqa: ANN401 - a YAML value may be anything
        self._lines.setdefault(path, node.start_mark.line + 1)
        self._values += 1
        if len(path) > MAX_DEPTH or self._values > MAX_VALUES:
            raise ConfigError(self.filename, "holds more values than any configuration does", line=self._lines[path])
        if isinstance(node, yaml.ScalarNode) and not _encodable(node.value):
            raise self.error(path, "expected text, found half of a surrogate pair")
        if isinstance(node, yaml.ScalarNode) and "\0" in node.value:
            # YAML may write it, and no path and no address may hold it.
            raise self.error(path, "expected text, found a NUL character in it")
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._build_mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self._build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}str":
            return node.value if node.style else self._plain(node.value, path)
        raise self.error(path, f"tags such as {node.tag.replace(_TAG, '!!')!r} are not used here")

    def _build_mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or not _encodable(key_node.value):
                raise ConfigError(self.filename, "a key must be text", line=line, path=dotted(path))
            key = key_node.value
            if key in mapping:
                first = self._lines[(*path, key)]
                problem = f"appears twice; it is already on line {first}"
                raise ConfigError(self.filename, problem, line=line, path=dotted((*path, key)))
            self._lines[(*path, key)] = line
            mapping[key] = self._build(value_node, (*path, key))
        return mapping

    def _plain(self, text: str, path: KeyPath) -> str | float | bool | None:
        """The value of text without quotes."""
        if text in _LITERALS:
            return _LITERALS[text]
        if _INT.fullmatch(text) and len(text) < 20:  # noqa: PLR2004 - all that fits into 64 bits
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise self.error(path, "the number is too large")
            return number
        return text

    def _explain(self, message: str, type_: type) -> ConfigError:
        """What msgspec says, in words of the file. It tells the first fault only, as ``problem - at `$.path` ``."""
        problem = message
        path: KeyPath = ()
        if match := re.fullmatch(r"(.*) - at `\$(.*)`", message, re.DOTALL):
            problem = match[1]
            path = self._locate(match[2], message, type_)
        if match := re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL):
            return self.error((*path, match[1]), _unknown_key(match[1], _keys_at(type_, path)))
        if match := re.fullmatch(r"Object missing required field `(.*)`", problem):
            return self.error(path, f"the key {match[1]!r} is missing")
        return self.error(path, f"expected {self._expected(problem, type_, path)}, found {self.found(path)}")

    def _locate(self, said: str, message: str, type_: type) -> KeyPath:
        """The path behind msgspec's ``.deployments[0].name``; a key of a free mapping is told as ``[...]``."""
        path: KeyPath = ()
        for name, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", said):
            if name or index != "...":
                path = (*path, name or int(index))
                continue
            value: Any = self.data
            for key in path:
                value = value[key]
            path = (*path, next(key for key in value if self._fails_with_only(path, key, message, type_)))
        return path

    def _fails_with_only(self, path: KeyPath, key: str, message: str, type_: type) -> bool:
        """Whether the same fault is found when the mapping at ``path`` holds nothing but ``key``."""

        def narrowed(value: Any, rest: KeyPath) -> Any:  # noqa: ANN401 - a YAML value may be anything
            if not rest:
                return {key: value[key]}
            return {**value, rest[0]: narrowed(value[rest[0]], rest[1:])}

        try:
            msgspec.convert(narrowed(self.data, path), type_)
        except msgspec.ValidationError as error:
            return str(error) == message
        return False

    def _expected(self, problem: str, type_: type, path: KeyPath) -> str:
        if problem.startswith("Invalid enum value"):
            lists = any(isinstance(info, msgspec.inspect.VarTupleType) for info in _types_at(type_, path))
            return _one_of(_words_at(type_, path), ["a list"] if lists else [])
        match = re.match(r"Expected `([^`]*)`(.*?)(?:, got .*)?$", problem, re.DOTALL)
        if match is None:
            return problem
        names = [name for name in match[1].split(" | ") if name != "null"]
        words = [*_words_at(type_, path)] if "str" in names else []
        kinds = [_TYPE_WORDS.get(name, name) for name in names if not (name == "str" and words)]
        return _one_of(words, kinds) + _bound(match[2])


def dotted(path: KeyPath) -> str:
    """A path as people write it: ``deployments[0].name``."""
    text = ""
    for key in path:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            text += f".{_shortened(key)}" if text else _shortened(key)
    return text


def _encodable(text: str) -> bool:
    """An escape for a surrogate gives half of a character, which no file or label can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _found(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(_shortened(value))
        case list():
            return "a list"
        case dict():
            return "keys with values"
        case _:
            return str(value)


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _bound(text: str) -> str:
    """The words for msgspec's `` >= 0.0`` or `` of length >= 1``."""
    match = re.match(r" (>=|<=|>|<) ([0-9.]+)", text)
    words = {">=": "of at least", "<=": "of at most", ">": "greater than", "<": "less than"}
    return f" {words[match[1]]} {float(match[2]):g}" if match else ""


def _one_of(words: Collection[str], kinds: Collection[str] = ()) -> str:
    *most, last = [*(repr(word) for word in words), *kinds]
    return f"{', '.join(most)} or {last}" if most else last


def _unknown_key(key: str, known: list[str]) -> str:
    if near := difflib.get_close_matches(key, known, n=1):
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; known here: {', '.join(known)}"


def _types_at(type_: type, path: KeyPath) -> Iterator[msgspec.inspect.Type]:
    """The types that a value at ``path`` may have, unions taken apart."""

    def step(info: msgspec.inspect.Type, rest: KeyPath) -> Iterator[msgspec.inspect.Type]:
        if isinstance(info, msgspec.inspect.UnionType):
            for one in info.types:
                yield from step(one, rest)
        elif isinstance(info, msgspec.inspect.Metadata):
            yield from step(info.type, rest)
        elif not rest:
            yield info
        elif isinstance(info, msgspec.inspect.StructType):
            for inner in (field.type for field in info.fields if field.encode_name == rest[0]):
                yield from step(inner, rest[1:])
        elif isinstance(info, msgspec.inspect.VarTupleType):
            yield from step(info.item_type, rest[1:])
        elif isinstance(info, msgspec.inspect.DictType):
            yield from step(info.value_type, rest[1:])

    yield from step(msgspec.inspect.type_info(type_), path)


def _keys_at(type_: type, path: KeyPath) -> list[str]:
    structs = (info for info in _types_at(type_, path) if isinstance(info, msgspec.inspect.StructType))
    return [field.encode_name for info in structs for field in info.fields]


def _words_at(type_: type, path: KeyPath) -> list[str]:
    literals = (info for info in _types_at(type_, path) if isinstance(info, msgspec.inspect.LiteralType))
    return [str(value) for info in literals for value in info.values]
