"""From what the user gives to sources: the names, the objects, and TFDIST_PREEMPTION, which is read here only."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from tfdist.errors import ConfigError
from tfdist.preemption.amazon import AmazonSpot
from tfdist.preemption.azure import Azure
from tfdist.preemption.file import File
from tfdist.preemption.google import GoogleCloud
from tfdist.preemption.notice import Source, require_source

VARIABLE = "TFDIST_PREEMPTION"
FIELD = "PreemptionHandler.sources"

_CLOUDS: Mapping[str, type[GoogleCloud] | type[AmazonSpot] | type[Azure]] = {
    "gce": GoogleCloud,
    "aws": AmazonSpot,
    "azure": Azure,
}
_RULE = 'must be "gce", "aws", "azure", "file:/path" or a Source'


def parse(
    sources: str | Source | Iterable[str | Source] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Source, ...]:
    """Returns the sources to watch.

    Args:
        sources: None: the defaults and those that TFDIST_PREEMPTION adds. There are no defaults at present: asking a
            metadata server that may not be there is left to who knows the machine. Else names, Source objects, or one
            of them; a string may hold several names, with commas between them. Then the environment does not count.
        environ: for tests; None: the environment of this process.

    Raises:
        ConfigError: something else, which is named.
    """
    if sources is None:
        text = (os.environ if environ is None else environ).get(VARIABLE, "")
        return _named(text, VARIABLE)
    if isinstance(sources, str):
        return _named(sources, FIELD)
    if callable(getattr(sources, "look", None)):
        return (require_source(sources, FIELD),)
    if not isinstance(sources, Iterable) or isinstance(sources, (bytes, Mapping)):
        raise ConfigError(FIELD, sources, _RULE + ", or several of them")
    found: dict[str, Source] = {}
    for value in sources:
        source = _from_name(value, FIELD) if isinstance(value, str) else _object(value)
        if source.name in found and not isinstance(value, str):
            raise ConfigError(FIELD, source.name, "is the name of two sources", "Give each Source its own name.")
        found.setdefault(source.name, source)
    return tuple(found.values())


def _named(text: str, field: str) -> tuple[Source, ...]:
    found = [_from_name(name, field) for name in text.split(",") if name.strip()]
    return tuple({source.name: source for source in found}.values())


def _from_name(text: str, field: str) -> Source:
    name, _, path = text.strip().partition(":")
    if name == "file" and path:
        return File(path)
    if name in _CLOUDS and text.strip() == name:
        return _CLOUDS[name]()
    raise ConfigError(field, text, _RULE)


def _object(value: Any) -> Source:
    if not callable(getattr(value, "look", None)):
        raise ConfigError(FIELD, value, _RULE)
    return require_source(value, FIELD)
