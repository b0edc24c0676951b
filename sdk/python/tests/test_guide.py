"""Runs the code of the guide, as a reader would."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from harness import query, url

PAGES = Path(__file__).resolve().parents[3] / "docs/tutorials"
GUIDE = "your-language-in-ten-minutes"


def blocks(page: str) -> "list[str]":
    return re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text("utf-8"), re.M | re.S)


def test_the_code_of_the_guide_does_what_the_guide_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMEL_TEST_POSTGRES_URL", url())
    query("DROP TABLE IF EXISTS shop_order")
    code = blocks(f"{GUIDE}.md")
    assert len(code) > 5
    module = types.ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)
    for at, block in enumerate(code):
        exec(compile(block, f"{GUIDE}.md, block {at + 1}", "exec", 0, True), vars(module))


def test_both_languages_of_the_guide_have_the_same_code() -> None:
    assert blocks(f"{GUIDE}.md") == blocks(f"{GUIDE}.zh-CN.md")
