"""What is shipped, what may import what, and what planning must never load."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"costmodel": "autopar.costmodel", "search": "autopar.search", "runtime": "autopar.runtime"}
HEAVY = {"torch", "cupy", "transformers", "ortools", "networkx", "pandas", "scipy", "matplotlib"}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def sources(folder: str) -> Iterator[Path]:
    return (path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """``(level, module)`` of every import statement, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


def packages_of_tree() -> set[str]:
    found = {"autopar"}
    for path in (ROOT / "autopar").iterdir():
        if path.name not in FOLDERS and (path / "__init__.py").is_file():
            found.add(f"autopar.{path.name}")
    for folder, name in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.add(".".join([name, *init.parent.relative_to(ROOT / folder).parts]))
    return found


def test_the_package_list_is_the_tree() -> None:
    settings = project()["tool"]["setuptools"]
    assert set(settings["packages"]) == packages_of_tree()
    assert settings["package-dir"] == {name: folder for folder, name in FOLDERS.items()}


def test_every_folder_of_modules_is_a_package() -> None:
    bare = {path.parent for folder in ("autopar", *FOLDERS) for path in sources(folder) if not (path.parent / "__init__.py").is_file()}
    assert bare == set()


def test_every_data_file_of_the_catalog_is_shipped() -> None:
    patterns = project()["tool"]["setuptools"]["package-data"]["autopar.catalog"]
    catalog = ROOT / "autopar" / "catalog"
    shipped = {path for pattern in patterns for path in catalog.glob(pattern)}
    data = {path for path in catalog.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert data
    assert data <= shipped


def test_folders_are_imported_by_their_full_names_alone() -> None:
    folders = ("autopar", *FOLDERS, "tests", "benchmarks")
    wrong = [
        f"{path.relative_to(ROOT)}: {module}"
        for folder in folders
        for path in sources(folder)
        for level, module in imported(path)
        if level == 0 and module.split(".")[0] in FOLDERS
    ]
    assert wrong == []


def test_spec_imports_the_standard_library_alone() -> None:
    wrong = [
        f"{path.name}: {'.' * level}{module}"
        for path in sources("costmodel/spec")
        for level, module in imported(path)
        if level > 1 or (level == 0 and module.split(".")[0] not in sys.stdlib_module_names)
    ]
    assert wrong == []


def test_the_cost_model_does_not_import_its_profiler() -> None:
    wrong = [
        path.name
        for path in sources("costmodel")
        if "profiler" not in path.relative_to(ROOT).parts
        for _, module in imported(path)
        if "profiler" in module.split(".")
    ]
    assert wrong == []


def loaded_by(code: str) -> set[str]:
    """Top-level modules in memory after ``code`` ran in a fresh interpreter."""
    script = f"import sys\n{code}\nprint('\\n'.join(sorted({{name.split('.')[0] for name in sys.modules}})), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return set(result.stderr.split())


def test_importing_autopar_loads_nothing_else() -> None:
    assert loaded_by("import autopar; assert autopar.__version__").isdisjoint({"numpy", "pydantic", "rich", "click", *HEAVY})


def test_the_runtime_without_torch_names_its_extra() -> None:
    code = "import sys; sys.modules['torch'] = None\nimport autopar\ntry: autopar.parallelize\nexcept Exception as error: print(error)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "autopar.parallelize needs torch: pip install 'autopar[runtime]'\n"


def test_the_command_line_starts_with_click_alone() -> None:
    loaded = loaded_by("from autopar.cli.app import run; assert run(['--version']) == 0; assert run(['plan', '--help']) == 0")
    assert loaded.isdisjoint({"numpy", "pydantic", "rich", *HEAVY})


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--model", "gpt-22b", "--gpus", "8"],
        ["estimate", "--model", "gpt-22b", "--gpus", "8", "--tp", "8", "--json"],
        ["explain", "--model", "gpt-22b", "--gpus", "8", "--tp", "8"],
    ],
)
def test_planning_loads_neither_torch_nor_a_solver(arguments: list[str]) -> None:
    assert loaded_by(f"from autopar.cli.app import run; assert run({arguments!r}) in (0, 1)").isdisjoint(HEAVY)


def test_a_clone_without_symbolic_links_still_imports(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "autopar").mkdir()
    (tmp_path / "autopar" / "__init__.py").write_text((ROOT / "autopar" / "__init__.py").read_text(encoding="utf-8"))
    for folder in FOLDERS:
        (tmp_path / "autopar" / folder).write_text(f"../{folder}")  # what git leaves where core.symlinks is false
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(f"here = {folder!r}")
    code = "import autopar.costmodel, autopar.search, autopar.runtime as r; assert (autopar.search.here, r.here) == ('search', 'runtime')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


def test_the_links_to_the_top_level_folders_are_there() -> None:
    assert {name: (ROOT / "autopar" / name).resolve() for name in FOLDERS} == {name: ROOT / name for name in FOLDERS}
