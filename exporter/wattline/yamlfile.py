"""YAML files whose mistakes are told with file, line and key.

A file is read by the core rules of YAML 1.2: only ``true`` and ``false`` are truth values, numbers are decimal, and
everything else is text. So ``on``, ``012`` or ``1:30`` are never silently something else.

This module imports nothing of ours.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import msgspec.inspect as i
import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""Where a value stands: ``("deployments", 0, "name")``."""

MAX_BYTES = 1_000_000
MAX_VALUES = 50_000
"""Aliases may repeat a part many times; this many values are enough for any real file."""
MAX_DEPTH = 20


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
        for path, problem in _problems(self.data, i.type_info(type_), ()):
            if isinstance(problem, _Expected):
                raise self.error(path, f"expected {problem}, found {self.found(path)}")
            raise self.error(path, problem)
        return msgspec.convert(self.data, type_)

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


def _one_of(words: Collection[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _unknown_key(key: str, known: list[str]) -> str:
    if near := difflib.get_close_matches(key, known, n=1):
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; known here: {', '.join(known)}"


class _Expected(str):
    """What a value may be; what was found stands behind it in the error."""

    __slots__ = ()


_SHAPES: dict[type[i.Type], tuple[type | tuple[type, ...], str]] = {
    i.NoneType: (type(None), ""),
    i.BoolType: (bool, "true or false"),
    i.LiteralType: (str, ""),
    i.StrType: (str, "text"),
    i.IntType: (int, "a whole number"),
    i.FloatType: ((int, float), "a number"),
    i.VarTupleType: (list, "a list"),
    i.DictType: (dict, "keys with values"),
    i.StructType: (dict, "keys with values"),
}
"""What the value of a type is in YAML, and in words. Nothing at all is written by leaving the key out."""
_BOUNDS = (
    ("ge", "at least", operator.ge),
    ("gt", "more than", operator.gt),
    ("le", "at most", operator.le),
)


def _alternatives(kind: i.Type) -> Iterator[i.Type]:
    if isinstance(kind, i.Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, i.UnionType):
        for one in kind.types:
            yield from _alternatives(one)
    else:
        yield kind


def _bounds(kind: i.Type) -> Iterator[tuple[str, float, Callable[[Any, Any], bool]]]:
    for name, words, holds in _BOUNDS:
        if (bound := getattr(kind, name, None)) is not None:
            yield words, bound, holds


def _fits(value: Any, kind: i.Type) -> bool:  # noqa: ANN401 - a YAML value may be anything
    """Whether a value is what a type asks for; what it holds is not looked at."""
    shape, _ = _SHAPES[type(kind)]
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        return False
    if isinstance(kind, i.LiteralType):
        return value in kind.values
    return all(holds(value, bound) for _, bound, holds in _bounds(kind))


def _words(kinds: Collection[i.Type]) -> str:
    """What the value of one of some types is: first what can be written as it is."""
    words = [repr(value) for kind in kinds if isinstance(kind, i.LiteralType) for value in kind.values]
    for kind in kinds:
        bounds = " and ".join(f"{word} {bound:g}" for word, bound, _ in _bounds(kind))
        words.append(_SHAPES[type(kind)][1] + (f" of {bounds}" if bounds else ""))
    return _one_of([word for word in dict.fromkeys(words) if word])


def _problems(value: Any, kind: i.Type, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:  # noqa: ANN401 - as above
    """Everything about a value that its type does not allow: where, and in words."""
    kinds = list(_alternatives(kind))
    meant = next((one for one in kinds if _fits(value, one)), None)
    if meant is None:
        yield path, _Expected(_words(kinds))
    elif isinstance(meant, i.VarTupleType):
        for index, inner in enumerate(value):
            yield from _problems(inner, meant.item_type, (*path, index))
    elif isinstance(meant, i.DictType):
        for key, inner in value.items():
            yield from _problems(inner, meant.value_type, (*path, key))
    elif isinstance(meant, i.StructType):
        known = {field.encode_name: field for field in meant.fields}
        for key, inner in value.items():
            if key in known:
                yield from _problems(inner, known[key].type, (*path, key))
            else:
                yield (*path, key), _unknown_key(key, list(known))
        yield from ((path, f"the key {k!r} is missing") for k, f in known.items() if f.required and k not in value)
