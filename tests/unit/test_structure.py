"""Rules of the source tree, read from the source: nothing of the project is imported here."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("data", "models", "parallel", "training", "tools")

# Which folders of ours a folder may import; `models` may also import `parallel.config` alone.
ALLOWED = {
    "data": {"data"},
    "parallel": {"parallel"},
    "models": {"models"},
    "training": {"training", "models", "data", "parallel"},
    "tools": {"tools", "training", "models", "data", "parallel"},
}
MAY_IMPORT_MEGATRON = {"models", "parallel", "training"}
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_FILES_TO_THE_STEP = 400, 60, 4


def source_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Every module that a file imports, at any depth; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def top_levels(tree: ast.AST) -> set[str]:
    return {name.split(".")[0] for name in imported_modules(tree)}


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain of names, else what there is of it."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


PRODUCT = source_files(*FOLDERS)
SHIPPED = [*PRODUCT, *source_files("benchmarks")]
product = pytest.mark.parametrize("path", PRODUCT, ids=relative)
shipped = pytest.mark.parametrize("path", SHIPPED, ids=relative)
everything = pytest.mark.parametrize("path", [*SHIPPED, *source_files("tests")], ids=relative)


def test_the_folders_are_found() -> None:
    assert {path.parent.name for path in PRODUCT} >= set(FOLDERS)
    assert len(PRODUCT) > 40


@product
def test_imports_go_in_one_direction(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    for name in imported_modules(tree_of(path)):
        if not name.startswith("genomoe."):
            assert name.split(".")[0] not in (*FOLDERS, "tests"), f"{name}: say genomoe.{name}"
            continue
        wanted = name.split(".")[1]
        if wanted in ALLOWED[folder]:
            continue
        is_layout = folder == "models" and name.startswith("genomoe.parallel.config")
        assert is_layout, f"{folder}/ may not know {name}"


@product
def test_who_may_know_megatron(path: Path) -> None:
    tree = tree_of(path)
    folder = path.relative_to(ROOT).parts[0]
    if {"megatron", "transformer_engine"} & top_levels(tree):
        assert folder in MAY_IMPORT_MEGATRON
    for name in imported_modules(tree):
        assert not name.startswith("megatron.training"), name
        if name.startswith("megatron."):
            assert name.startswith("megatron.core"), name


@pytest.mark.parametrize("path", source_files("data"), ids=relative)
def test_preprocessing_runs_without_torch(path: Path) -> None:
    heavy = {"torch", "megatron", "transformer_engine", "safetensors", "tensorboard"}
    assert not heavy & top_levels(tree_of(path))


def test_the_shapes_and_layouts_are_known_without_torch() -> None:
    for name in (
        "models/config.py",
        "models/flops.py",
        "models/names.py",
        "parallel/config.py",
        "parallel/memory.py",
        "parallel/preflight.py",
        "parallel/threads.py",
        "training/chunks.py",
        "training/config.py",
        "data/json_codec.py",
        "training/presets.py",
    ):
        assert not {"torch", "megatron"} & top_levels(tree_of(ROOT / name)), name


def unsafe_in(path: Path) -> Iterator[str]:
    tree = tree_of(path)
    for module in ("pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"):
        if module in top_levels(tree):
            yield f"imports {module}"
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        options = {k.arg: k.value for k in node.keywords}
        if called in ("torch.load", "eval", "exec", "os.system", "os.popen"):
            yield f"line {node.lineno}: {called}"
        shell = options.get("shell")
        if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
            yield f"line {node.lineno}: {called}(shell=...)"
        pickled = options.get("allow_pickle")
        if isinstance(pickled, ast.Constant) and pickled.value is True:
            yield f"line {node.lineno}: {called}(allow_pickle=True)"
        if called in ("np.load", "numpy.load") and "allow_pickle" not in options:
            yield f"line {node.lineno}: {called} without allow_pickle=False"


@shipped
def test_nothing_runs_what_it_reads(path: Path) -> None:
    assert list(unsafe_in(path)) == []


@everything
def test_files_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES


@shipped
def test_functions_are_short(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


def dependencies() -> set[str]:
    """Top-level modules of what pyproject names, as far as a distribution's name gives them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"] + [
        item for extra in project["optional-dependencies"].values() for item in extra
    ]
    names = {re.split(r"[\s\[<>=!~;]", item)[0].lower() for item in requirements}
    assert {"torch", "megatron-core", "tyro"} <= names
    return {name.replace("-", "_") for name in names} | {"megatron", "transformer_engine", "nvidia"}


@product
def test_no_module_hides_another(path: Path) -> None:
    """A script run by path has its own folder first on sys.path."""
    if path.stem != "__init__":
        assert path.stem not in sys.stdlib_module_names
        assert path.stem.lower() not in dependencies() | {"datasets", "tokenizers", "utils"}


def module_file(name: str) -> Path | None:
    """The file of a module of ours, or None."""
    if not name.startswith("genomoe."):
        return None
    path = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
    return path if path.exists() else None


def next_files(path: Path) -> set[Path]:
    """Files of ours that a file imports or starts as `python -m MODULE`."""
    tree = tree_of(path)
    names = set(imported_modules(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.List):  # a command line
            names |= {item.value for item in node.elts if _is_our_module(item)}
    return {file for name in names if (file := module_file(name)) is not None}


def _is_our_module(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith("genomoe.")
    )


def steps_the_optimizer(path: Path) -> bool:
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    return any(re.search(r"optimizer\.step$", dotted(call.func)) for call in calls)


def way_to_the_step() -> list[Path]:
    """The shortest way from the command line to the optimizer's step, over imports."""
    start = ROOT / "training" / "launch.py"
    ways, seen = [[start]], {start}
    for way in ways:
        if steps_the_optimizer(way[-1]):
            return way
        for following in sorted(next_files(way[-1]) - seen):
            seen.add(following)
            ways.append([*way, following])
    raise AssertionError("no file that training/launch.py leads to calls optimizer.step()")


def test_four_files_from_the_command_line_to_the_step() -> None:
    way = [relative(path) for path in way_to_the_step()]
    assert len(way) <= MAX_FILES_TO_THE_STEP, " -> ".join(way)
    assert way[-1] == "training/step.py"


def test_one_file_steps_the_optimizer() -> None:
    assert [relative(path) for path in PRODUCT if steps_the_optimizer(path)] == ["training/step.py"]


def test_the_readme_names_the_files_on_the_way() -> None:
    readme = (ROOT / "README.md").read_text()
    places = [readme.find(f"`{relative(path)}`") for path in way_to_the_step()]
    assert -1 not in places
    assert places == sorted(places), "in another order"


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for node in tree_of(ROOT / "data" / "manifest.py").body:
        if isinstance(node, ast.Assign) and dotted(node.targets[0]) == "TOOL_VERSION":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value == project["version"]
            return
    raise AssertionError("data/manifest.py has no TOOL_VERSION")


def test_every_folder_is_a_package_that_is_installed() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    mapped = pyproject["tool"]["setuptools"]["package-dir"]
    for folder in FOLDERS:
        assert (ROOT / folder / "__init__.py").exists()
        assert mapped[f"genomoe.{folder}"] == folder
    assert sorted(mapped) == sorted(pyproject["tool"]["setuptools"]["packages"])
    inner = [path for path in PRODUCT if len(path.relative_to(ROOT).parts) > 2]
    assert inner == [], "a folder inside a package needs its own line in pyproject.toml"
