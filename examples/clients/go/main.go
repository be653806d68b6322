// Program orders stores orders, bills each once, and keeps a price, with stock nats.go.
//
//	go run . nats://127.0.0.1:4222
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	nc, err := nats.Connect(os.Args[1])
	check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	check(err)
	stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: "orders", Subjects: []string{"orders.>"},
	})
	check(err)
	for number := 1; number <= 3; number++ {
		ack, err := js.Publish(ctx, "orders.paris", []byte(fmt.Sprintf("order %d", number)))
		check(err)
		fmt.Printf("order %d is synced as %d\n", number, ack.Sequence)
	}

	billing, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{Durable: "billing"})
	check(err)
	batch, err := billing.Fetch(3, jetstream.FetchMaxWait(5*time.Second))
	check(err)
	for message := range batch.Messages() {
		check(message.DoubleAck(ctx)) // returns once the ack is stored, so no redelivery
		fmt.Printf("billed: %s\n", message.Data())
	}

	prices, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "prices"})
	check(err)
	_, err = prices.PutString(ctx, "apple", "3")
	check(err)
	entry, err := prices.Get(ctx, "apple")
	check(err)
	fmt.Printf("an apple costs %s\n", entry.Value())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
