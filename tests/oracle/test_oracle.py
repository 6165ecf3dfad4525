"""Decisions match the pinned ones; a commit that changes them says so and pins them anew."""

import json
import os

import pytest
import scenes

PINNED = json.loads(scenes.PINNED.read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(scenes.SCENES))
def test_a_scene_ends_as_it_was_pinned(name):
    try:
        scenes.data_folder()
    except SystemExit as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))
    lines = scenes.differences(PINNED[name], scenes.played(name))
    assert not lines, f"{len(lines)} differences; see scenes.py --write\n" + "\n".join(lines[:20])


def test_differences_are_found_at_any_depth():
    assert scenes.differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == [
        "/a/1/b: pinned 2, found 3"
    ]
    assert len(scenes.differences([1], [1, 2])) == len(scenes.differences({"a": 1}, {})) == 1
