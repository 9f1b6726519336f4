"""Mutants of a source: lines with one thing changed that may change a number, found by AST. Texts,
figures, messages, types, the help of the command line, and what only fetches data into caches ahead
are left alone."""

import ast
import hashlib
import json
import re
from dataclasses import dataclass
from itertools import pairwise

TEXT_PATHS = re.compile(
    r"simshuffle/(cli|studies/presentation)/.*"
    r"|.*[/_](figures?|texts?|verb|says|wording|written|chart"
    r"|canvas|paper|style|ahead|console|schema|errors|version|__main__)\.py"
)
TEXT_TYPES = re.compile(r"((list|tuple|Iterator)\[)?str(, \.\.\.)?\]?( \| None)?")
TEXT_NODES = ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom
TEXT_CALLS = {
    "Option",
    "Argument",
    "Column",
    "Problem",
    "Field",
    "warn",
    "warning",
    "info",
}
TEXT_CALLS |= {"readable", "readable_count", "refuse"}
TYPES = {"Literal", "tuple", "list", "dict", "Callable", "Annotated"}
CALLS = {
    "min": "max",
    "minimum": "maximum",
    "argmin": "argmax",
    "floor": "ceil",
    "any": "all",
}
CALLS |= {other: name for name, other in CALLS.items()}
OPERATORS = {
    ast.Lt: "< <=",
    ast.LtE: "<= <",
    ast.Gt: "> >=",
    ast.GtE: ">= >",
    ast.Add: "+ -",
}
OPERATORS |= {
    ast.Sub: "- +",
    ast.Mult: "* /",
    ast.Div: "/ *",
    ast.And: "and or",
    ast.Or: "or and",
}


@dataclass(frozen=True)
class Mutant:
    """A line and what takes its place; ``code`` is "function", "compiled" or "module"."""

    file: str
    line: int
    before: str
    after: str
    code: str
    statement: int  # the line where its statement begins

    def rank(self, seed):
        return hashlib.sha256(
            f"{seed}{self.file}{self.before}{self.after}".encode()
        ).digest()


class Mutations:
    """All mutants of a file, without those of texts, types and messages."""

    def __init__(self, file, source):
        self.file, self.lines, self.found = file, source.encode().split(b"\n"), []
        self.walk(ast.parse(source), 1, "module", False, {})

    def text(self, node):
        return self.lines[node.lineno - 1][
            node.col_offset : node.end_col_offset
        ].decode()

    def edits(self, node, is_key, next_key):
        """Edits of a node, each as (first node, last node, old text or None for all, new)."""
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
                new = self.text(test.operand) if is_not else f"not ({self.text(test)})"
                yield test, test, None, new
            case (
                ast.Compare(left=left, ops=[operator], comparators=[right])
                | ast.BinOp(left=left, op=operator, right=right)
                | ast.BoolOp(op=operator, values=[left, right])
            ):
                if type(operator) in OPERATORS:
                    yield left, right, *OPERATORS[type(operator)].split()
                if isinstance(operator, ast.Mult | ast.Div):
                    yield node, node, None, f"({self.text(left)})"
            case ast.Call(func=ast.Attribute(attr="copy", value=copied), args=[]):
                yield node, node, None, self.text(copied)
            case ast.Call(
                func=ast.Attribute(attr="sqrt") | ast.Name(id="sqrt"), args=[value]
            ):
                yield node, node, None, f"({self.text(value)})"
            case ast.Call(
                func=ast.Name(id="list" | "dict" | "deepcopy"), args=[ast.Name(id=name)]
            ):
                yield node, node, None, name
            case ast.Call(
                func=(ast.Attribute(attr=name) | ast.Name(id=name)) as function
            ):
                if name in CALLS:
                    yield (
                        node,
                        node,
                        None,
                        re.sub(rf"{name}$", CALLS[name], self.text(function))
                        + self.text(node)[len(self.text(function)) :],
                    )
            case ast.Tuple(elts=[*kept, _], ctx=ast.Load()) if is_key and kept:
                if not any(isinstance(element, ast.Slice) for element in node.elts):
                    yield node, node, None, f"({', '.join(map(self.text, kept))},)"
            case ast.Subscript(slice=ast.Constant(value=str()) as key) if (
                id(node) in next_key
            ):
                yield key, key, None, json.dumps(next_key[id(node)])
            # most arrays have one axis, and the clock of a network has one record: the first
            # is the last
            case ast.Subscript(value=array, slice=index) if ast.unparse(index) in {
                "0",
                "-1",
            } and not re.search(r"clock|\.shape$", ast.unparse(array)):
                yield index, index, None, "-1" if ast.unparse(index) == "0" else "0"
            case ast.Constant(value=int() | float()) if not isinstance(
                node.value, bool
            ):
                yield node, node, None, f"({self.text(node)} + 1)"

    def put(self, statement, code, first, last, old, new):
        if first.lineno == first.end_lineno == last.lineno == last.end_lineno:
            line = self.lines[first.lineno - 1]
            start = first.col_offset
            end = last.end_col_offset
            if old:
                start = line.index(old.encode(), first.end_col_offset, last.col_offset)
                end = start + len(old)
            changed = line[:start] + new.encode() + line[end:]
            pair = line.decode().strip(), changed.decode().strip()
            self.found.append(Mutant(self.file, first.lineno, *pair, code, statement))

    def walk(self, node, statement, code, is_key, next_key):
        called = getattr(node, "func", None)
        children = ast.iter_child_nodes(node)
        match node:
            case (
                ast.Expr(value=ast.Constant())
                | ast.If(test=ast.Name(id="TYPE_CHECKING"))
            ):
                return
            case ast.FunctionDef(returns=kind) if kind and TEXT_TYPES.fullmatch(
                ast.unparse(kind)
            ):
                return
            case ast.FunctionDef():
                for default in [
                    *node.args.defaults,
                    *filter(None, node.args.kw_defaults),
                ]:
                    self.walk(default, node.lineno, "module", False, {})
                marks = {
                    ast.unparse(mark).split("(")[0] for mark in node.decorator_list
                }
                inside = marks & {"entry", "compiled", "reducing"} or code == "compiled"
                code = "compiled" if inside else "function"
                is_key = False
                children = node.body
                next_key = neighbouring_keys(node)
            case ast.ClassDef():
                children = node.body
            case ast.AnnAssign():
                children = [node.value] if node.value else []
            case ast.keyword(arg="axis"):
                return
            case ast.Subscript(value=ast.Name(id=name)) if name in TYPES:
                return
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
                return  # -1 says that there is none; -2 would, too
            case ast.keyword(arg="key" | "by" | "on"):
                is_key = True
            case (
                ast.Assign(targets=[target])
                | ast.Subscript(slice=ast.Tuple() as target)
            ):
                is_key = isinstance(node, ast.Subscript) or "key" in ast.unparse(target)
        if (
            isinstance(node, TEXT_NODES)
            or getattr(called, "attr", getattr(called, "id", "")) in TEXT_CALLS
        ):
            return
        statement = node.lineno if isinstance(node, ast.stmt) else statement
        for edit in self.edits(node, is_key, next_key):
            self.put(statement, code, *edit)
        for child in children:
            self.walk(child, statement, code, is_key, next_key)


def neighbouring_keys(function):
    """By each ``row["key"]`` of a function, another key that stands next to it."""
    rows = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    ]
    rows = sorted(rows, key=lambda node: (node.lineno, node.col_offset))
    rows = [row for row in rows if isinstance(row.slice.value, str)]
    pairs = [*zip(rows[1:], rows, strict=False), *pairwise(rows)]
    return {id(a): b.slice.value for a, b in pairs if a.slice.value != b.slice.value}
