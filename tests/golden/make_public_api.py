"""The public interface as lines: ``python -m tests.golden.make_public_api`` writes
tests/golden/public_api.txt anew, unless a stable name went without an old name to replace it.
"""

import inspect
import re
import sys
from pathlib import Path

from typer.main import get_command

import simshuffle
from simshuffle.cli import app
from simshuffle.cli.schema_files import schema
from simshuffle.moved import NEW_PLACES, OLD_OPTIONS, OLD_VERBS, REFUSED_VERBS
from simshuffle.study.registry import REMOVED, kinds_of, own_verbs, study_of, verbs

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_name("public_api.txt")
PAGE = ROOT / "docs" / "stability.md"
RENEW = "python -m tests.golden.make_public_api"
OWNERS = ("verb", "function", "key", "folder")
STABLE = "stable, "
READ = ", in every folder that is read"
"""End of the detail of a stored column for which nothing is filled in where a folder lacks it."""
NO_LEVEL = "without a level"
VOLUME = {"help", "quiet", "verbose"}
"""Options that every verb has."""


def read_levels(text):
    """'stable' or 'provisional' by 'verb run', 'function run' and so on, as the rows
    '| verbs | stable | provisional |' of docs/stability.md have them in backticks."""
    levels = {}
    for owner in OWNERS:
        row = re.search(rf"^\| {owner}s \| (.*) \| (.*) \|$", text, re.MULTILINE)
        for level, names in zip(("stable", "provisional"), row.groups(), strict=True):
            for name in re.findall(r"`([^`]+)`", names):
                assert f"{owner} {name}" not in levels, f"{owner} {name} stands twice"
                levels[f"{owner} {name}"] = level
    return levels


def list_functions():
    """(owner, name, detail) of functions and classes of ``simshuffle`` and their parameters."""
    plugins = [verb for name, verb in verbs().items() if name not in own_verbs()]
    names = {*simshuffle.__all__} - {verb.function for verb in plugins} - {"__version__"}
    for name in sorted(names):
        value = getattr(simshuffle, name)
        owner = f"function {name}"
        yield owner, owner, "class" if inspect.isclass(value) else "function"
        parameters = {} if inspect.isclass(value) else inspect.signature(value).parameters
        for parameter in parameters.values():
            is_needed = parameter.default is parameter.empty
            default = "required" if is_needed else repr(parameter.default)
            kind = parameter.kind.description
            detail = f"{parameter.annotation}, {kind}, {default}"
            yield owner, f"parameter {name} {parameter.name}", detail


def list_verbs(group, above=""):
    """(owner, name, detail) of verbs, their arguments and options, without those of plugins."""
    for word in sorted(group.commands):
        command, name = group.commands[word], f"{above}{word}"
        if hasattr(command, "commands"):
            yield from list_verbs(command, f"{name} ")
        elif name not in verbs().keys() - own_verbs().keys():
            yield f"verb {name}", f"verb {name}", "verb"
            for option in command.params:
                if option.name not in VOLUME:
                    is_argument = option.param_type_name == "argument"
                    first = option.name.upper() if is_argument else option.opts[0]
                    yield f"verb {name}", f"option {name} {first}", describe_option(option)


def describe_option(option):
    """What stands for the value, whether it may be repeated, the default, and other names."""
    is_flag = getattr(option, "is_flag", False)
    is_many = getattr(option, "multiple", False) or option.nargs == -1
    parts = ["flag" if is_flag else option.metavar or "TEXT"]
    parts += ["repeatable"] * is_many
    parts += ["required" if option.required else f"default {option.default}"]
    if option.param_type_name != "argument":
        parts += [*option.opts[1:], *option.secondary_opts]
    return ", ".join(parts)


def list_columns():
    """(owner, name, detail) of result folders and of every column of their tables."""
    for kind in sorted(kinds_of(own_verbs().values())):
        study = study_of(kind)
        yield f"folder {kind}", f"folder {kind}", f"of {study.verb or 'train'}"
        derived = {name: table.schema for name, table in study.derived.items()}
        for table, columns in {**study.stored, **derived}.items():
            filled = {
                *columns.newer,
                *columns.absent,
                *(columns.columns if columns.is_newer else ()),
            }
            for name, column in columns.columns.items():
                is_read = table in study.stored and name not in filled
                detail = column.kind + ", or empty" * column.empty + READ * is_read
                yield f"folder {kind}", f"column {kind}/{table}{columns.suffix} {name}", detail


def list_keys():
    """(owner, name, detail) of the top-level keys of a scenario, its cluster and its workload."""
    records = schema("scenario")["$defs"]
    for above, record in (("", "Scenario"), ("cluster.", "Cluster"), ("workload.", "Workload")):
        for name in sorted(records[record]["properties"]):
            detail = "required" if name in records[record]["required"] else "optional"
            yield f"key {above}{name}", f"key {above}{name}", detail


def describe_interface():
    """The detail of every name of the interface, which begins with the level of its owner. A key
    that the page does not name has the level of the key above it."""
    levels = read_levels(PAGE.read_text("utf-8"))
    names = {}
    parts = [list_functions(), list_verbs(get_command(app)), list_columns(), list_keys()]
    for owner, name, detail in (line for part in parts for line in part):
        level = levels.get(owner) or levels.get(owner.partition(".")[0], NO_LEVEL)
        names[name] = f"{level}, {detail}"
    old = {"verb": OLD_VERBS, "option": OLD_OPTIONS, "module": NEW_PLACES}
    old |= {"refused verb": REFUSED_VERBS, "removed": REMOVED}
    for kind, new_names in old.items():
        names |= {f"old {kind} {name}": f"now {new}" for name, new in new_names.items()}
    return names


def write_lines(names):
    """The text of the golden file."""
    lines = [f"{name}: {detail}\n" for name, detail in sorted(names.items())]
    return f"# What {RENEW} lists; docs/stability.md says what the levels mean.\n{''.join(lines)}"


def read_lines(text):
    """The names of the golden file, and their details."""
    return dict(line.split(": ", 1) for line in text.splitlines() if not line.startswith("#"))


def find_lost(stored, names):
    """Stable names of ``stored`` that ``names`` lacks, and no list of old names has."""
    removed = [name.removeprefix("old removed ") for name in names if "old removed " in name]
    replaced = {f"{kind} {name}" for kind in OWNERS for name in removed}
    replaced |= {name.partition(" ")[2] for name in names if name.startswith("old ")}
    replaced |= {name.removeprefix("refused ") for name in replaced}
    return [
        name
        for name, detail in stored.items()
        if detail.startswith(STABLE) and name not in names and not is_replaced(name, replaced)
    ]


def find_unreadable(stored, names):
    """New columns for which older folders of a kind that ``stored`` has would be refused."""
    return [
        name
        for name, detail in names.items()
        if name not in stored
        and detail.endswith(READ)
        and f"folder {name.split('/')[0].removeprefix('column ')}" in stored
    ]


def is_replaced(name, replaced):
    """Whether a name, or the verb, function or folder that it belongs to, is in ``replaced``."""
    kind, _, path = name.partition(" ")
    owner = {"option": "verb", "parameter": "function", "column": "folder"}.get(kind, kind)
    above = path.rpartition(" ")[0].partition("/")[0]
    last_word = f"verb {path.rpartition(' ')[2]}"  # removed verbs are known by it
    return not replaced.isdisjoint({name, f"{owner} {above}", last_word if kind == "verb" else ""})


def list_obstacles(stored, names):
    """What keeps the golden file from being renewed, with a remedy."""
    owners = [name for name, detail in names.items() if detail.startswith(NO_LEVEL)]
    if owners := [name for name in owners if name.partition(" ")[0] in OWNERS]:
        yield f"{', '.join(owners)}: docs/stability.md gives no level, stable or provisional."
    if lost := find_lost(stored, names):
        yield (
            f"{', '.join(lost)}: stable, so the old name stays for one version."
            " Name it in simshuffle/moved.py (or REMOVED of simshuffle/study/registry.py),"
            " or put it back; docs/stability.md has the rule."
        )
    if unreadable := find_unreadable(stored, names):
        yield (
            f"{', '.join(unreadable)}: folders of earlier versions would be refused."
            " Say in `newer`, `absent` or `is_newer` of the Schema what stands there."
        )


def list_changes(stored, names):
    """What differs, a line each, and what to do about it."""
    changes = [f"- {name}: {stored[name]}" for name in stored if name not in names]
    changes += [f"+ {name}: {names[name]}" for name in names if name not in stored]
    changes += [
        f"~ {name}: {detail} -> {names[name]}"
        for name, detail in stored.items()
        if names.get(name, detail) != detail
    ]
    obstacles = [*list_obstacles(stored, names)]
    if changes and not obstacles:
        changes.append(f"If it is meant, add a line to CHANGELOG.md and run: {RENEW}")
    return changes + obstacles


def main():
    """Write the golden file, and print what has changed.

    Returns:
        The exit status: 1 if something keeps it from being written.
    """
    names = describe_interface()
    stored = read_lines(FILE.read_text("utf-8"))
    sys.stdout.writelines(f"{change}\n" for change in list_changes(stored, names))
    if [*list_obstacles(stored, names)]:
        return 1
    FILE.write_text(write_lines(names), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
