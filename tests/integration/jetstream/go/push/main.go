// Program main receives from push and ordered consumers, by both APIs of nats.go; it prints "ok" per
// operation. Ordered consumers are deleted midway: their clients have to go on without a gap.
package main

import (
	"context"
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

// expect takes the numbers from first to last, in order, from a channel.
func expect(what string, seen <-chan string, first, last int) {
	for number := first; number <= last; number++ {
		select {
		case data := <-seen:
			if data != fmt.Sprint(number) {
				must(what, false, data+" instead of "+fmt.Sprint(number))
			}
		case <-time.After(20 * time.Second):
			must(what, false, fmt.Sprint("nothing came after ", number-1))
		}
	}
	fmt.Println("ok", what)
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 80*time.Second)
	defer cancel()
	nc, err := nats.Connect(os.Args[1])
	check("connect", err)
	js, err := jetstream.New(nc)
	check("jetstream", err)
	old, err := nc.JetStream()
	check("the older jetstream", err)
	s, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "GOPUSH", Subjects: []string{"gopush.>"}})
	check("create stream", err)
	published := 0
	publish := func(count int) {
		for ; count > 0; count-- {
			published++
			if _, err := js.Publish(ctx, "gopush.x", []byte(fmt.Sprint(published))); err != nil {
				check("publish", err)
			}
		}
	}
	lose := func(name string) { check("lose the consumer", s.DeleteConsumer(ctx, name)) }
	publish(50)

	seen := make(chan string, 10_000)
	sub, err := old.Subscribe("gopush.>", func(m *nats.Msg) { seen <- string(m.Data) },
		nats.OrderedConsumer(), nats.IdleHeartbeat(500*time.Millisecond))
	check("ordered push consumer", err)
	expect("ordered push", seen, 1, 50)
	info, err := sub.ConsumerInfo()
	check("its info", err)
	must("its settings", info.PushBound && info.Config.FlowControl && info.Config.Replicas == 1, info)
	lose(info.Name)
	publish(20)
	expect("ordered push after a loss", seen, 51, 70)
	check("unsubscribe", sub.Unsubscribe())

	oc, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	check("ordered pull consumer", err)
	seen = make(chan string, 10_000)
	cc, err := oc.Consume(func(m jetstream.Msg) { seen <- string(m.Data()) },
		jetstream.PullExpiry(2*time.Second), jetstream.PullHeartbeat(500*time.Millisecond))
	check("consume in order", err)
	expect("ordered pull", seen, 1, 70)
	lose(oc.CachedInfo().Name)
	publish(30)
	expect("ordered pull after a loss", seen, 71, 100)
	cc.Stop()

	sub, err = old.QueueSubscribeSync("gopush.>", "workers", nats.DeliverNew())
	check("queue", err)
	other, err := old.QueueSubscribeSync("gopush.>", "workers")
	check("queue again", err)
	publish(20)
	taken := 0
	for deadline := time.Now().Add(20 * time.Second); taken < 20 && time.Now().Before(deadline); {
		for _, each := range []*nats.Subscription{sub, other} {
			if m, err := each.NextMsg(50 * time.Millisecond); err == nil {
				check("ack", m.AckSync())
				taken++
			}
		}
	}
	must("a queue group takes each once", taken == 20, taken)
	check("drain", sub.Drain())
	check("drain", other.Drain())

	pc, err := s.CreatePushConsumer(ctx, jetstream.ConsumerConfig{
		Durable: "pushed", DeliverSubject: nats.NewInbox(), AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: time.Second, FlowControl: true, IdleHeartbeat: time.Second,
	})
	check("push consumer", err)
	seen = make(chan string, 10_000)
	refused := false
	cc, err = pc.Consume(func(m jetstream.Msg) {
		if string(m.Data()) == "120" && !refused {
			refused = true
			m.Nak()
			return
		}
		m.Ack()
		seen <- string(m.Data())
	})
	check("consume pushed", err)
	expect("pushed and redelivered", seen, 1, 120)
	cc.Stop()
	// With 8 MiB on their way flow control has to be answered several times.
	large := make([]byte, 64<<10)
	for number := 0; number < 128; number++ {
		_, err = js.Publish(ctx, "gopush.large", large)
		if err != nil {
			check("publish large", err)
		}
	}
	sub, err = old.SubscribeSync("gopush.large", nats.OrderedConsumer())
	check("ordered large", err)
	for number := 1; number <= 128; number++ {
		m, err := sub.NextMsg(20 * time.Second)
		if err != nil {
			check("large", err)
		}
		meta, err := m.Metadata()
		if err != nil || meta.Sequence.Consumer != uint64(number) || len(m.Data) != len(large) {
			must("large in order", false, meta)
		}
	}
	check("delete stream", js.DeleteStream(ctx, "GOPUSH"))
	fmt.Println("all done")
}
