"""What energy costs is configured once, and published as series."""

from __future__ import annotations

import pytest

from wattline.config import ConfigError, Price, parse
from wattline.publish.server import Publication


def published(price: Price | None) -> list[str]:
    publication = Publication()
    publication.set_price(price)
    text = publication.render("text/plain", compressed=False)[0].decode()
    return [line for line in text.splitlines() if line.startswith("wattline_energy_")]


def test_a_price_is_three_series() -> None:
    config = parse("price: {per_kwh: 0.25, currency: USD, pue: 1.2, co2_per_kwh: 0.35}", "wattline.yml")
    assert published(config.price) == [
        'wattline_energy_price_per_kilowatt_hour{currency="USD"} 0.25',
        "wattline_energy_pue_ratio 1.2",
        "wattline_energy_co2_kilograms_per_kilowatt_hour 0.35",
    ]


def test_nothing_is_told_that_nobody_configured() -> None:
    assert published(parse("", "wattline.yml").price) == []
    # The site's overhead is 1 unless somebody knows better; CO2 has no such neutral value.
    assert published(parse("price: {per_kwh: 0.25}", "wattline.yml").price) == [
        'wattline_energy_price_per_kilowatt_hour{currency="EUR"} 0.25',
        "wattline_energy_pue_ratio 1.0",
    ]


@pytest.mark.parametrize(
    ("price", "key"),
    [
        ("{currency: EUR}", "price"),
        ("{per_kwh: 0}", "price.per_kwh"),
        ("{per_kwh: 0.25, currency: euro}", "price.currency"),
        ("{per_kwh: 0.25, pue: 0.9}", "price.pue"),
        ("{per_kwh: 0.25, co2_per_kwh: -1}", "price.co2_per_kwh"),
    ],
)
def test_a_price_that_cannot_be_is_refused_by_name(price: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"wattline.yml:1: {key}"):
        parse(f"price: {price}", "wattline.yml")
