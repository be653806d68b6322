module example/orders

go 1.21

require github.com/nats-io/nats.go v1.55.0
