"""Published figures: numbers as the file has them, and a clear word for what it lacks."""

import pytest

from helpers.published import published


def test_figures_are_numbers():
    article = published("matmul_add_64")
    assert article["self_cpu_time_total"] == 2314
    assert article["self_cuda_time_total"] == 23.104
    assert published("python_adds")["rate"] == 32e6


def test_a_figure_for_each_step_is_a_list():
    assert published("matmul_add_4096")["step_host_eager"] == [100, 70, 70]


def test_an_unknown_experiment_names_the_known_ones():
    with pytest.raises(KeyError, match="matmul_add_65.*matmul_add_64"):
        published("matmul_add_65")
