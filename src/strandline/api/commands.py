"""The table of all admin commands, by name.

A command is declared in the module of its area, with its structs, and handled in the module of the
same name in ``servers/flight``. docs/architecture.md says how to add one.
"""

from typing import Any, Final

from strandline.api import (
    access,
    admin,
    backup,
    cluster,
    encryption,
    groups,
    local,
    monitoring,
    quotas,
    schemas,
    transactions,
)
from strandline.api.command import AdminCommand

_AREAS: Final = (
    admin,
    local,
    cluster,
    encryption,
    transactions,
    groups,
    access,
    quotas,
    schemas,
    monitoring,
    backup,
)
COMMANDS: Final[dict[str, AdminCommand[Any, Any]]] = {
    declared.name: declared
    for area in _AREAS
    for declared in vars(area).values()
    if isinstance(declared, AdminCommand)
}
