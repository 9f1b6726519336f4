"""Kinds of data: how a script reads its samples, and the program that writes the files first.

Options switch a kind between its sick and its mended form; both read files that one program wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

from benchmarks.doctor_cases.recipe import FEATURES, Recipe

PREPARE = """
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parent
rng = np.random.default_rng(0)
samples = {samples}
features = rng.random((samples, {features}), dtype=np.float32)
labels = rng.integers(0, 10, samples)
"""
NUMPY = {"import numpy as np", "from pathlib import Path"}
PATHS = 'self.paths = [FOLDER / "data" / f"{index:05}.npy" for index in range(%d)]\n'
LABELS = 'self.labels = np.load(FOLDER / "labels.npy")\n'


def prepare(recipe: Recipe, text: str) -> None:
    """Set the program that writes the files of a script."""
    begin = PREPARE.format(samples=recipe.setting.samples, features=FEATURES)
    recipe.prepare = (
        begin.lstrip() + 'np.save(FOLDER / "labels.npy", labels)\n' + dedent(text)
    )


def join_blocks(*blocks: str) -> str:
    """Join blocks of lines of different depths."""
    return "\n".join(dedent(block).strip("\n") for block in blocks)


def memory(recipe: Recipe) -> None:
    """Tensors in memory; ``repeats`` makes them longer than the network reads."""
    repeats = recipe.options.get("repeats", 1)
    samples = recipe.setting.samples
    prepare(recipe, "")
    recipe.imports |= {"from pathlib import Path"}
    recipe.init = f"""
    generator = torch.Generator().manual_seed(0)
    self.features = torch.rand({samples}, {FEATURES * repeats}, generator=generator)
    self.labels = torch.randint(0, 10, ({samples},), generator=generator)
    """
    recipe.read = "x = self.features[index]\nlabel = int(self.labels[index])"


def npy(recipe: Recipe) -> None:
    """One file a sample, or ``parts`` files of it."""
    parts = recipe.options.get("parts", 1)
    prepare(
        recipe,
        f"""
        (FOLDER / "data").mkdir()
        for index, row in enumerate(features):
            np.save(FOLDER / "data" / f"{{index:05}}.npy", row)
            for part, piece in enumerate(np.array_split(row, {parts}) if {parts} > 1 else ()):
                np.save(FOLDER / "data" / f"{{index:05}}_{{part:02}}.npy", piece)
        """,
    )
    recipe.imports |= NUMPY
    recipe.init = PATHS % recipe.setting.samples + LABELS
    recipe.read = "x = np.load(self.paths[index])\nlabel = int(self.labels[index])"
    if recipe.options.get("many_files"):
        recipe.read = f"""
        stem = str(self.paths[index])[:-4]
        names = [f"{{stem}}_{{part:02}}.npy" for part in range({parts})]
        x = np.concatenate([np.load(name) for name in names])  #! opens
        label = int(self.labels[index])
        """


def npz(recipe: Recipe) -> None:
    """An npz a sample, compressed with ``packed``; it holds ``frames`` rows, and one is used."""
    frames = recipe.options.get("frames", 1)
    prepare(
        recipe,
        f"""
        (FOLDER / "data").mkdir()
        for index, row in enumerate(features):
            frames = np.tile((row * 255).astype(np.uint8), ({frames}, 1))
            frames = frames ^ rng.integers(0, 16, frames.shape, dtype=np.uint8)
            np.savez_compressed(FOLDER / "data" / f"{{index:05}}.packed.npz", x=frames)
            np.savez(FOLDER / "data" / f"{{index:05}}.npz", x=frames)
        """,
    )
    recipe.imports |= NUMPY
    packed = recipe.options.get("packed")
    ending = ".packed.npz" if packed else ".npz"
    recipe.init = PATHS.replace(".npy", ending) % recipe.setting.samples + LABELS
    recipe.read = """
    with np.load(self.paths[index]) as archive:
        x = archive["x"][0].astype(np.float32)%s
    label = int(self.labels[index])
    """ % ("  #! decode" if packed else "")


def archive(recipe: Recipe) -> None:
    """Zip archives of ``members`` samples, opened once or ``anew``."""
    members = recipe.options.get("members", 32)
    prepare(
        recipe,
        f"""
        import zipfile
        for begin in range(0, samples, {members}):
            with zipfile.ZipFile(FOLDER / f"part-{{begin // {members}:04}}.zip", "w") as archive:
                for index in range(begin, min(samples, begin + {members})):
                    archive.writestr(f"{{index:05}}", features[index].tobytes())
        """,
    )
    recipe.imports |= {*NUMPY, "import zipfile"}
    recipe.init = LABELS + "self.archives = {}"
    recipe.read = f"""
    part = index // {members}
    if part not in self.archives:
        self.archives[part] = zipfile.ZipFile(FOLDER / f"part-{{part:04}}.zip")
    x = np.frombuffer(self.archives[part].read(f"{{index:05}}"), np.float32).copy()
    label = int(self.labels[index])
    """
    if recipe.options.get("anew"):
        recipe.init = LABELS
        recipe.read = f"""
        part = FOLDER / f"part-{{index // {members}:04}}.zip"
        with zipfile.ZipFile(part) as archive:  #! done anew
            x = np.frombuffer(archive.read(f"{{index:05}}"), np.float32).copy()
        label = int(self.labels[index])
        """


def sqlite(recipe: Recipe) -> None:
    """Rows of a database with ``tables`` others, connected once or ``anew``."""
    prepare(
        recipe,
        f"""
        import sqlite3
        with sqlite3.connect(FOLDER / "data.db") as database:
            database.execute("create table samples (id integer primary key, x blob)")
            for index in range({recipe.options.get("tables", 3)}):
                database.execute(f"create table run_{{index}} (id integer, loss real, note text)")
            rows = [(index, row.tobytes()) for index, row in enumerate(features)]
            database.executemany("insert into samples values (?, ?)", rows)
        """,
    )
    recipe.imports |= {*NUMPY, "import sqlite3"}
    recipe.init = LABELS + "self.database = None"
    query = '"select x from samples where id = ?", (index,)'
    recipe.read = f"""
    if self.database is None:
        self.database = sqlite3.connect(FOLDER / "data.db")
    (blob,) = self.database.execute({query}).fetchone()
    x = np.frombuffer(blob, np.float32).copy()
    label = int(self.labels[index])
    """
    if recipe.options.get("anew"):
        recipe.read = f"""
        database = sqlite3.connect(FOLDER / "data.db")  #! done anew
        (blob,) = database.execute({query}).fetchone()  #! done anew
        database.close()  #! done anew
        x = np.frombuffer(blob, np.float32).copy()
        label = int(self.labels[index])
        """


def csv(recipe: Recipe) -> None:
    """A table with ``columns`` notes beside the features, read by ``iloc`` or as an array."""
    columns = recipe.options.get("columns", 2)
    prepare(
        recipe,
        f"""
        import pandas as pd
        frame = pd.DataFrame(features, columns=[f"x{{index}}" for index in range(256)])
        notes = {{f"note{{index}}": ["text"] * samples for index in range({columns})}}
        frame = pd.concat([frame, pd.DataFrame({{**notes, "label": labels}})], axis=1)
        frame.to_csv(FOLDER / "data.csv", index=False, float_format="%.4f")
        """,
    )
    recipe.imports |= {*NUMPY, "import pandas as pd"}
    names = '[f"x{index}" for index in range(256)]'
    recipe.init = f"""
    frame = pd.read_csv(FOLDER / "data.csv")
    self.features = frame[{names}].to_numpy(np.float32)
    self.labels = frame["label"].to_numpy()
    """
    recipe.read = "x = self.features[index]\nlabel = int(self.labels[index])"
    if recipe.options.get("iloc"):
        recipe.init = (
            f'self.frame = pd.read_csv(FOLDER / "data.csv")\nself.names = {names}\n'
        )
        recipe.read = """
        row = self.frame.iloc[index]  #! sample code
        x = row[self.names].to_numpy(np.float32)  #! sample code
        label = int(row["label"])
        """


def strings(recipe: Recipe) -> None:
    """Lines of numbers as text, parsed once or for every sample, ``digits`` long."""
    digits = recipe.options.get("digits", 4)
    prepare(
        recipe,
        f"""
        lines = [",".join(f"{{value:.{digits}f}}" for value in row) for row in features]
        (FOLDER / "data.txt").write_text("\\n".join(lines))
        """,
    )
    recipe.imports |= NUMPY
    lines = '(FOLDER / "data.txt").read_text().splitlines()'
    arrays = (
        'self.features = np.array([line.split(",") for line in lines], np.float32)\n'
    )
    recipe.init = f"lines = {lines}\n" + arrays + LABELS
    recipe.read = "x = self.features[index]\nlabel = int(self.labels[index])"
    if recipe.options.get("parse"):
        recipe.init = f"self.lines = {lines}\n" + LABELS
        recipe.read = f"""
        x = np.zeros(256, np.float32)
        for _ in range({recipe.options["parse"]}):
            x += [float(value) for value in self.lines[index].split(",")]  #! sample code
        label = int(self.labels[index])
        """


def json_labels(recipe: Recipe) -> None:
    """Labels in a JSON file of ``entries`` names or more, parsed once or ``anew``."""
    entries = max(0, recipe.options.get("entries", 0) - recipe.setting.samples)
    prepare(
        recipe,
        f"""
        import json
        np.save(FOLDER / "features.npy", features)
        names = {{f"{{index:05}}.jpg": int(label) for index, label in enumerate(labels)}}
        names |= {{f"other/{{index:05}}.jpg": 0 for index in range({entries})}}
        (FOLDER / "labels.json").write_text(json.dumps(names))
        """,
    )
    recipe.imports |= {*NUMPY, "import json"}
    recipe.init = 'self.features = np.load(FOLDER / "features.npy")\n'
    recipe.read = 'x = self.features[index]\nlabel = self.labels[f"{index:05}.jpg"]'
    if recipe.options.get("anew"):
        recipe.helpers.append(
            """
            def label_of(name):
                with (FOLDER / "labels.json").open() as file:
                    return json.load(file)[name]  #! done anew
            """
        )
        recipe.read = 'x = self.features[index]\nlabel = label_of(f"{index:05}.jpg")  #! done anew'
    else:
        recipe.init += 'self.labels = json.loads((FOLDER / "labels.json").read_text())'


def text(recipe: Recipe) -> None:
    """Lines of ``words`` words, tokenised once, ``late`` in a sample, or with a vocabulary
    made ``anew``."""
    prepare(
        recipe,
        f"""
        vocabulary = [f"word{{index}}" for index in range(1000)]
        lines = [
            " ".join(rng.choice(vocabulary, {recipe.options.get("words", 40)}))
            for _ in range(samples)
        ]
        (FOLDER / "text.txt").write_text("\\n".join(lines))
        (FOLDER / "vocabulary.txt").write_text("\\n".join(vocabulary))
        """,
    )
    recipe.imports |= {*NUMPY, "import re"}
    recipe.helpers.append(
        """
        def tokens_of(line, vocabulary):
            words = re.findall(r"\\w+", line.lower())  #! sample code
            ids = [vocabulary.get(word, 0) for word in words]  #! sample code
            return torch.tensor((ids + [0] * 16)[:16])
        """
        if recipe.options.get("late")
        else """
        def tokens_of(line, vocabulary):
            words = re.findall(r"\\w+", line.lower())
            ids = [vocabulary.get(word, 0) for word in words]
            return torch.tensor((ids + [0] * 16)[:16])
        """
    )
    recipe.init = join_blocks(
        """
        lines = (FOLDER / "text.txt").read_text().splitlines()
        self.words = (FOLDER / "vocabulary.txt").read_text().splitlines()
        vocabulary = {word: index for index, word in enumerate(self.words)}
        """,
        LABELS,
    )
    ready = "\nself.tokens = [tokens_of(line, vocabulary) for line in lines]"
    lines_only = "\nself.lines, self.vocabulary = lines, vocabulary"
    label = "\nlabel = int(self.labels[index])"
    if recipe.options.get("late"):
        recipe.init += lines_only
        recipe.read = (
            "x = tokens_of(self.lines[index], self.vocabulary)  #! sample code" + label
        )
    elif recipe.options.get("anew"):
        recipe.init += lines_only
        line = "vocabulary = {word: place for place, word in enumerate(self.words)}  #! done anew"
        recipe.read = f"{line}\nx = tokens_of(self.lines[index], vocabulary)" + label
    else:
        recipe.init += ready if not recipe.options.get("was_anew") else lines_only
        recipe.read = "x = self.tokens[index]" + label
        if recipe.options.get("was_anew"):
            recipe.read = "x = tokens_of(self.lines[index], self.vocabulary)" + label


def images(recipe: Recipe) -> None:
    """JPEG images with a long side of ``pixels``, scaled to 16 x 16; mended: stored small."""
    pixels = recipe.options.get("pixels", 16)
    prepare(
        recipe,
        f"""
        from PIL import Image
        (FOLDER / "data").mkdir()
        for index, row in enumerate(features):
            image = Image.fromarray((row.reshape(16, 16) * 255).astype(np.uint8))
            image.save(FOLDER / "data" / f"{{index:05}}.small.png")
            if {pixels} > 16:
                large = image.resize(({pixels}, {pixels})).convert("RGB")
                large.save(FOLDER / "data" / f"{{index:05}}.jpg", quality=92)
        """,
    )
    recipe.imports |= {*NUMPY, "from PIL import Image"}
    large = recipe.options.get("large")
    ending = ".jpg" if large else ".small.png"
    recipe.init = PATHS.replace(".npy", ending) % recipe.setting.samples + LABELS
    recipe.read = """
    image = Image.open(self.paths[index])
    x = np.asarray(image, np.float32).reshape(256) / 255
    label = int(self.labels[index])
    """
    if large:
        recipe.read = """
        image = Image.open(self.paths[index]).convert("L")  #! decode
        x = np.asarray(image.resize((16, 16)), np.float32).reshape(256) / 255
        label = int(self.labels[index])
        """


KINDS: dict[str, Callable[[Recipe], None]] = {
    "memory": memory,
    "npy": npy,
    "npz": npz,
    "archive": archive,
    "sqlite": sqlite,
    "csv": csv,
    "strings": strings,
    "json_labels": json_labels,
    "text": text,
    "images": images,
}
# us to read a sample as it should be read
BASE_US = {
    "memory": 12.0,
    "npy": 90.0,
    "npz": 230.0,
    "archive": 40.0,
    "sqlite": 25.0,
    "csv": 8.0,
    "strings": 8.0,
    "json_labels": 8.0,
    "text": 8.0,
    "images": 90.0,
    "shards": 8.0,
    "remote": 20.0,
}
