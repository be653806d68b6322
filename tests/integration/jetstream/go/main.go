// Program main uses streams and pull consumers as a Go service does; it prints "ok" per operation.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func check(what string, err error) {
	if err != nil {
		fmt.Println("failed", what, err)
		os.Exit(1)
	}
	fmt.Println("ok", what)
}

func must(what string, holds bool, found any) {
	if !holds {
		fmt.Println("failed", what, found)
		os.Exit(1)
	}
	fmt.Println("ok", what)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	defer cancel()
	nc, err := nats.Connect(os.Args[1])
	check("connect", err)
	js, err := jetstream.New(nc)
	check("jetstream", err)
	info, err := js.AccountInfo(ctx)
	check("account", err)
	must("account streams", info.Streams >= 0, info)
	s, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "GO", Subjects: []string{"go.>"}, AllowDirect: true})
	check("create or update stream", err)
	_, err = js.Stream(ctx, "NOPE")
	must("stream not found", errors.Is(err, jetstream.ErrStreamNotFound), err)
	for i := 1; i <= 10; i++ {
		_, err = js.Publish(ctx, fmt.Sprintf("go.%d", i), []byte(fmt.Sprint(i)))
		check("publish", err)
	}
	m, err := s.GetMsg(ctx, 3)
	check("get", err)
	must("get data", string(m.Data) == "3", m)
	_, err = s.GetMsg(ctx, 99)
	must("no message", errors.Is(err, jetstream.ErrMsgNotFound), err)
	m, err = s.GetLastMsgForSubject(ctx, "go.7")
	check("last for subject", err)
	must("last sequence", m.Sequence == 7, m)
	config := jetstream.ConsumerConfig{Durable: "d", AckPolicy: jetstream.AckExplicitPolicy}
	c, err := s.CreateOrUpdateConsumer(ctx, config)
	check("create consumer", err)
	_, err = s.CreateOrUpdateConsumer(ctx, config)
	check("create it again", err)
	batch, err := c.Fetch(4, jetstream.FetchMaxWait(3*time.Second))
	check("fetch", err)
	count := 0
	for msg := range batch.Messages() {
		count++
		must("data", string(msg.Data()) == fmt.Sprint(count), string(msg.Data()))
		if count == 4 {
			check("nak", msg.NakWithDelay(100*time.Millisecond))
		} else {
			check("double ack", msg.DoubleAck(ctx))
		}
	}
	check("fetch's end", batch.Error())
	must("fetched", count == 4, count)
	msg, err := c.Next(jetstream.FetchMaxWait(3 * time.Second))
	check("next", err)
	check("ack", msg.Ack())
	done := make(chan string, 100)
	cc, err := c.Consume(func(msg jetstream.Msg) {
		msg.Ack()
		done <- string(msg.Data())
	}, jetstream.PullExpiry(time.Second), jetstream.PullHeartbeat(500*time.Millisecond))
	check("consume", err)
	seen := map[string]bool{string(msg.Data()): true}
	for len(seen) < 7 {
		select {
		case data := <-done:
			seen[data] = true
		case <-ctx.Done():
			check("consumed", ctx.Err())
		}
	}
	time.Sleep(2500 * time.Millisecond)
	_, err = js.Publish(ctx, "go.late", []byte("late"))
	check("publish late", err)
	must("consumed late", <-done == "late", "")
	cc.Stop()
	_, err = c.FetchNoWait(1)
	check("fetch no wait", err)
	names := s.ConsumerNames(ctx)
	n := 0
	for range names.Name() {
		n++
	}
	must("consumer names", n == 1 && names.Err() == nil, n)
	ci, err := c.Info(ctx)
	check("consumer info", err)
	must("pending", ci.NumPending == 0, ci)
	check("delete consumer", s.DeleteConsumer(ctx, "d"))
	_, err = s.Consumer(ctx, "d")
	must("consumer not found", errors.Is(err, jetstream.ErrConsumerNotFound), err)
	oc, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	check("ordered consumer", err)
	it, err := oc.Messages(jetstream.PullExpiry(time.Second), jetstream.PullHeartbeat(500*time.Millisecond))
	check("ordered messages", err)
	for i := 1; i <= 11; i++ {
		msg, err := it.Next()
		check("ordered next", err)
		meta, err := msg.Metadata()
		check("metadata", err)
		must("ordered sequence", meta.Sequence.Stream == uint64(i), meta)
	}
	it.Stop()
	check("purge", s.Purge(ctx, jetstream.WithPurgeKeep(2)))
	si, err := s.Info(ctx)
	check("info", err)
	must("kept", si.State.Msgs == 2, si.State)
	check("delete stream", js.DeleteStream(ctx, "GO"))
	fmt.Println("all done")
}
