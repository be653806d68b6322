"""Names of the headers that pipelines put into records: where a record comes from, and why.

Rules: a record made of another carries the three source headers; they are what a copy finds its
position in, what duplicates are recognised by, and what cleaning up removes.
"""

SOURCE_STREAM = "Strandline-Source-Stream"
SOURCE_PARTITION = "Strandline-Source-Partition"
SOURCE_OFFSET = "Strandline-Source-Offset"
SOURCE_HEADERS = (SOURCE_STREAM, SOURCE_PARTITION, SOURCE_OFFSET)

ERROR = "Strandline-Error"
"""Of a dead letter: why its value was refused."""
