"""A browser, and the JavaScript packages that tests/js/package-lock.json names: each once for all tests here.

`pytest --backend torch tests/blackbox`: the same rules, kept by the torch backend.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.blackbox.browsing import CHROMIUM, FLAGS, PATIENCE_MS
from tests.torch_model import fim_torch_model

SCRIPTS = Path(__file__).parent.parent / "js"
INSTALL_TIMEOUT_S = 300


@pytest.fixture(scope="session")
def js_scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of tests/js beside their packages."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not here; .ci/run installs it")
    folder = shutil.copytree(
        SCRIPTS, tmp_path_factory.mktemp("js") / "scripts", ignore=shutil.ignore_patterns("node_modules")
    )
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    result = subprocess.run(
        command,
        cwd=folder,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; .ci/run installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        expect.set_options(timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page of a daemon, live; `options` are Playwright's of a context."""
    contexts = []

    def open_page(url: str, **options: object) -> Page:
        contexts.append(context := browser.new_context(**options))
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#connection")).to_have_text("Live")
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def model_path(request: pytest.FixtureRequest) -> Path:
    """The default model, as the backend wants it."""
    backend = request.config.getoption("--backend")
    path: Path = request.getfixturevalue("torch_path" if backend == "torch" else "gguf_path")
    return path


@pytest.fixture(scope="session")
def fim_model_path(
    request: pytest.FixtureRequest, model_path: Path, fim_model_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model that fills gaps, as the backend wants it."""
    if request.config.getoption("--backend") == "torch":
        return fim_torch_model(model_path, tmp_path_factory.mktemp("fim"))
    return fim_model_path
