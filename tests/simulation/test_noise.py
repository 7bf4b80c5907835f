from statistics import fmean, pstdev

import pytest

from wattline.simulation.noise import CELL_SECONDS, Noise, seeded

CELLS = range(4099)


@pytest.fixture(scope="module")
def noise() -> Noise:
    return Noise(seeded(1, "test"))


def test_noise_has_no_mean_and_a_known_spread(noise: Noise) -> None:
    values = [noise.cell(number) for number in CELLS]
    assert fmean(values) == pytest.approx(0.0, abs=1e-9)
    assert pstdev(values) == pytest.approx(1.0, abs=0.1)
    assert max(map(abs, values)) < 2.6


def test_the_integral_is_the_sum_of_the_cells_also_before_zero_and_over_the_repetition(noise: Noise) -> None:
    for start, count in ((0, 250), (-75, 150), (4000, 300)):
        summed = sum(noise.cell(number) for number in range(start, start + count)) * CELL_SECONDS
        integral = noise.integral((start + count) * CELL_SECONDS) - noise.integral(start * CELL_SECONDS)
        assert integral == pytest.approx(summed, abs=1e-9)


def test_the_integral_grows_evenly_within_a_cell(noise: Noise) -> None:
    grown = noise.integral(1.015) - noise.integral(1.005)
    assert grown == pytest.approx(0.01 * noise.cell(50))


def test_one_second_means_are_calmer_than_the_power_itself_but_not_still(noise: Noise) -> None:
    means = [noise.integral(t + 1) - noise.integral(t) for t in range(80)]
    assert 0.15 < pstdev(means) < 0.6


def test_one_seed_gives_one_noise_and_another_seed_another() -> None:
    first, again, other = (Noise(seeded(seed, "gpu", 0)) for seed in (1, 1, 2))
    assert [first.cell(n) for n in range(50)] == [again.cell(n) for n in range(50)]
    assert [first.cell(n) for n in range(50)] != [other.cell(n) for n in range(50)]
