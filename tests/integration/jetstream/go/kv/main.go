// Program kv uses a key-value bucket as a Go service does; it prints "ok" per operation.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
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
	if len(os.Args) > 2 {
		js, err = jetstream.NewWithDomain(nc, os.Args[2])
	}
	check("jetstream", err)
	config := jetstream.KeyValueConfig{Bucket: "GO", History: 3, TTL: time.Hour}
	kv, err := js.CreateKeyValue(ctx, config)
	check("create bucket", err)
	_, err = js.CreateKeyValue(ctx, config)
	check("create bucket again", err)
	_, err = js.KeyValue(ctx, "NOPE")
	must("bucket not found", errors.Is(err, jetstream.ErrBucketNotFound), err)

	revision, err := kv.Create(ctx, "a.b", []byte("1"))
	check("create", err)
	must("first revision", revision == 1, revision)
	_, err = kv.Create(ctx, "a.b", []byte("x"))
	must("key exists", errors.Is(err, jetstream.ErrKeyExists), err)
	revision, err = kv.Update(ctx, "a.b", []byte("2"), revision)
	check("update", err)
	_, err = kv.Update(ctx, "a.b", []byte("x"), 1)
	must("wrong revision", err != nil && strings.Contains(err.Error(), "wrong last sequence: 2"), err)
	for i := 3; i <= 5; i++ {
		revision, err = kv.PutString(ctx, "a.b", fmt.Sprint(i))
		check("put", err)
	}
	entry, err := kv.Get(ctx, "a.b")
	check("get", err)
	must("value", string(entry.Value()) == "5" && entry.Revision() == revision, entry)
	entry, err = kv.GetRevision(ctx, "a.b", 3)
	check("get revision", err)
	must("old value", string(entry.Value()) == "3", entry)
	_, err = kv.GetRevision(ctx, "a.b", 2)
	must("beyond the history", errors.Is(err, jetstream.ErrKeyNotFound), err)
	status, err := kv.Status(ctx)
	check("status", err)
	must("values", status.Values() == 3 && status.History() == 3 && status.TTL() == time.Hour, status)

	_, err = kv.PutString(ctx, "c", "v")
	check("put another", err)
	check("delete", kv.Delete(ctx, "c"))
	_, err = kv.Get(ctx, "c")
	must("deleted", errors.Is(err, jetstream.ErrKeyNotFound), err)
	_, err = kv.Create(ctx, "c", []byte("again"))
	check("create after a deletion", err)
	check("purge", kv.Purge(ctx, "c"))

	keys, err := kv.Keys(ctx)
	check("keys", err)
	sort.Strings(keys)
	must("one key", fmt.Sprint(keys) == "[a.b]", keys)
	history, err := kv.History(ctx, "a.b")
	check("history", err)
	must("three revisions", len(history) == 3 && string(history[0].Value()) == "3", history)

	watcher, err := kv.Watch(ctx, "a.*")
	check("watch", err)
	first := <-watcher.Updates()
	must("watched value", first != nil && string(first.Value()) == "5", first)
	must("end of initial values", <-watcher.Updates() == nil, nil)
	_, err = kv.PutString(ctx, "a.b", "6")
	check("put while watching", err)
	next := <-watcher.Updates()
	must("watched update", next != nil && string(next.Value()) == "6", next)
	check("stop watching", watcher.Stop())

	check("purge deletes", kv.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(-1)))
	status, err = kv.Status(ctx)
	check("status again", err)
	must("values left", status.Values() == 3, status.Values())
	empty, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "EMPTY"})
	check("create an empty bucket", err)
	_, err = empty.Keys(ctx)
	must("no keys", errors.Is(err, jetstream.ErrNoKeysFound), err)
	check("delete bucket", js.DeleteKeyValue(ctx, "GO"))
	check("delete the other", js.DeleteKeyValue(ctx, "EMPTY"))
	fmt.Println("all done")
}
