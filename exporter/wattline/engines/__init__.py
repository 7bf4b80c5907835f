"""Reading of inference engines: from the text that an engine serves to :class:`wattline.readings.EngineReading`.

``exposition`` reads a metrics text, ``kinds`` says what a table of an engine's names looks like, one module per engine
holds a table, ``tables`` knows all of them, ``normalise`` makes a reading, and ``scrape`` fetches the text over HTTP.
"""
