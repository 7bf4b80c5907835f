"""Publishing: serves what was judged, from memory. A scrape never touches a GPU and never waits for an engine."""
