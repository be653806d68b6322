"""Names of the headers that pipelines add to records: their source, and why they failed.

Rule: a derived record carries the three source headers; a copy finds its position by them,
duplicates are recognised by them, and ``clean`` removes them.
"""

SOURCE_STREAM = "Strandline-Source-Stream"
SOURCE_PARTITION = "Strandline-Source-Partition"
SOURCE_OFFSET = "Strandline-Source-Offset"
SOURCE_HEADERS = (SOURCE_STREAM, SOURCE_PARTITION, SOURCE_OFFSET)

ERROR = "Strandline-Error"
"""In a dead letter: why its value was rejected."""
