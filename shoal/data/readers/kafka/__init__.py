"""Topics of Kafka: their URL, segments of partitions, the calls to brokers, formats of messages."""
