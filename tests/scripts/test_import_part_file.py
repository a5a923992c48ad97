"""scripts/teacher_cache/part_file.py: the parts of a teacher's cache that an import writes."""

import time

import pytest

from teacher_cache.part_file import FOOT, HEAD, STRETCH, Stretch, write_part


def seconds_for(path, stretches):
    made = [Stretch(0, index, 0, 1, b"") for index in range(stretches)]
    begin = time.process_time()
    write_part(path, bytes(32), 0, 8, made)
    seconds = time.process_time() - begin
    assert path.stat().st_size == HEAD.size + stretches * STRETCH.size + FOOT.size + 8
    return seconds


@pytest.mark.alone
def test_the_time_of_a_part_is_proportional_to_its_stretches(tmp_path):
    """Allowed is 8 times as long for each stretch; with a table that is copied for each one it is hundreds of times."""
    few = min(seconds_for(tmp_path / "few.dtc", 5_000) for _ in range(3))
    assert seconds_for(tmp_path / "many.dtc", 80_000) < 8 * 16 * few
