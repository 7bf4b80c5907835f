from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from wattline.engines.scrape import open_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened
