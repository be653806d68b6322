// Program main reads all messages of a stream of several partitions by a durable consumer of nats.go
// until it has acknowledged so many different ones, whatever happens to the brokers meanwhile. It
// prints how many it has, and fails if an acknowledged message comes again or a count goes down.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func check(what string, err error) {
	if err != nil {
		fmt.Println("failed", what, err)
		os.Exit(1)
	}
}

func main() {
	count, err := strconv.Atoi(os.Args[3])
	check("count", err)
	nc, err := nats.Connect(os.Args[1])
	check("connect", err)
	js, err := jetstream.New(nc)
	check("jetstream", err)
	ctx, cancel := context.WithTimeout(context.Background(), 180*time.Second)
	defer cancel()
	consumer, err := js.CreateOrUpdateConsumer(ctx, os.Args[2], jetstream.ConsumerConfig{
		Durable: "go", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second, MaxAckPending: 20,
	})
	check("consumer", err)
	acked, delivered := map[string]bool{}, map[string]uint64{}
	for len(acked) < count {
		check("time", ctx.Err())
		batch, err := consumer.Fetch(5, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			continue
		}
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			check("metadata", err)
			text := string(m.Data())
			if acked[text] {
				fmt.Println("failed: acknowledged and delivered again", text)
				os.Exit(1)
			}
			if meta.NumDelivered <= delivered[text] {
				fmt.Println("failed: delivery", meta.NumDelivered, "follows", delivered[text], text)
				os.Exit(1)
			}
			delivered[text] = meta.NumDelivered
			waiting, stop := context.WithTimeout(ctx, time.Second)
			if m.DoubleAck(waiting) == nil {
				acked[text] = true
				fmt.Println("acked", len(acked))
			}
			stop()
		}
	}
	fmt.Println("all done")
}
