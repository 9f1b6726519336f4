"""List the texts that users may read, to read them in one go.

    python -m tests.docs.messages [FOLDER ...]

Every text of four words and more below the folders (the whole package unless given) that is no
docstring: path, line, and the text, with {...} where a value is filled in.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FEWEST_WORDS = 4


def text_of(node: ast.AST) -> str:
    """The text of a constant or an f-string; '' of anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
            for part in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each message of a file; a docstring is none."""
    tree = ast.parse(path.read_text())
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            inside.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            inside.update(part for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        text = "" if node in inside else " ".join(text_of(node).split())
        if len(text.split()) >= FEWEST_WORDS:
            yield node.lineno, text


if __name__ == "__main__":
    for folder in sys.argv[1:] or [str(ROOT / "simshuffle")]:
        for file in sorted(Path(folder).rglob("*.py")):
            for line, text in messages(file):
                sys.stdout.write(f"{file}:{line}: {text}\n")
