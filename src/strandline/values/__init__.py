"""Values of records: columns, schemas, and decoding of JSON, Avro and Arrow; not Spark."""
