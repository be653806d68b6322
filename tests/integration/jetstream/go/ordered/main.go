// Program main reads a stream in order by a pull and by a push consumer of nats.go until both have
// seen so many messages, whatever happens to the server's leader meanwhile. It prints how far each
// is, and fails at a gap, a message out of order, or one that comes twice.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var printing sync.Mutex

func say(words ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(words...)
}

func check(what string, err error) {
	if err != nil {
		say("failed", what, err)
		os.Exit(1)
	}
}

// follow counts the messages of one consumer, by their sequence in the stream.
func follow(name string, count uint64, done *sync.WaitGroup) func(uint64) {
	last := uint64(0)
	return func(sequence uint64) {
		if sequence != last+1 {
			say("failed", name, "sequence", sequence, "after", last)
			os.Exit(1)
		}
		last = sequence
		say(name, last)
		if last == count {
			done.Done()
		}
	}
}

func main() {
	count, err := strconv.ParseUint(os.Args[3], 10, 64)
	check("count", err)
	nc, err := nats.Connect(os.Args[1])
	check("connect", err)
	js, err := jetstream.New(nc)
	check("jetstream", err)
	old, err := nc.JetStream()
	check("the older jetstream", err)
	var done sync.WaitGroup
	done.Add(2)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	oc, err := js.OrderedConsumer(ctx, os.Args[2], jetstream.OrderedConsumerConfig{})
	check("ordered consumer", err)
	pulled := follow("pull", count, &done)
	cc, err := oc.Consume(func(m jetstream.Msg) {
		meta, err := m.Metadata()
		check("metadata", err)
		pulled(meta.Sequence.Stream)
	}, jetstream.PullExpiry(2*time.Second), jetstream.PullHeartbeat(500*time.Millisecond))
	check("consume", err)
	defer cc.Stop()
	pushed := follow("push", count, &done)
	_, err = old.Subscribe("", func(m *nats.Msg) {
		meta, err := m.Metadata()
		check("metadata", err)
		pushed(meta.Sequence.Stream)
	}, nats.BindStream(os.Args[2]), nats.OrderedConsumer(), nats.IdleHeartbeat(500*time.Millisecond))
	check("subscribe", err)
	done.Wait()
	say("all done")
}
