import pytest

from shared.gpus import visible_gpus


@pytest.mark.parametrize(
    "variable, count, expected",
    [
        (None, 2, ["0", "1"]),
        ("3,1", 2, ["3", "1"]),
        ("1", 1, ["1"]),
        ("GPU-0ab,GPU-1cd", 2, ["GPU-0ab", "GPU-1cd"]),
        ("0,9", 1, ["0"]),  # CUDA sees none from the first invalid one on
        ("", 0, []),
        (None, 0, []),
    ],
)
def test_each_gpu_is_named_as_a_child_must_name_it(monkeypatch, variable, count, expected):
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == expected
