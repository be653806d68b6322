import io.nats.client.Connection;
import io.nats.client.ConsumerContext;
import io.nats.client.FetchConsumeOptions;
import io.nats.client.FetchConsumer;
import io.nats.client.IterableConsumer;
import io.nats.client.JetStream;
import io.nats.client.JetStreamApiException;
import io.nats.client.JetStreamManagement;
import io.nats.client.JetStreamSubscription;
import io.nats.client.KeyValue;
import io.nats.client.Message;
import io.nats.client.MessageConsumer;
import io.nats.client.Nats;
import io.nats.client.Options;
import io.nats.client.PurgeOptions;
import io.nats.client.PushSubscribeOptions;
import io.nats.client.StreamContext;
import io.nats.client.api.AckPolicy;
import io.nats.client.api.ConsumerConfiguration;
import io.nats.client.api.ConsumerInfo;
import io.nats.client.api.DeliverPolicy;
import io.nats.client.api.KeyValueConfiguration;
import io.nats.client.api.KeyValueEntry;
import io.nats.client.api.KeyValueWatcher;
import io.nats.client.api.OrderedConsumerConfiguration;
import io.nats.client.api.PublishAck;
import io.nats.client.api.StreamConfiguration;
import java.time.Duration;
import java.time.ZonedDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Uses streams, consumers and buckets with stock jnats; prints "ok" per operation. */
public final class Streams {
  private static void must(String what, boolean holds, Object found) {
    if (!holds) {
      System.out.println("failed " + what + " " + found);
      System.exit(1);
    }
    System.out.println("ok " + what);
  }

  private static String text(Message message) {
    return message == null ? "nothing" : new String(message.getData());
  }

  private static int error(CheckedCall call) throws Exception {
    try {
      call.run();
    } catch (JetStreamApiException e) {
      return e.getApiErrorCode();
    }
    return 0;
  }

  private interface CheckedCall {
    void run() throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    Options options = Options.builder().server(arguments[0]).noReconnect().build();
    try (Connection nc = Nats.connect(options)) {
      JetStreamManagement jsm = nc.jetStreamManagement();
      must("account", jsm.getAccountStatistics().getStreams() >= 0, null);
      StreamConfiguration config =
          StreamConfiguration.builder().name("JAVA").subjects("java.>").allowDirect(true).build();
      jsm.addStream(config);
      must("create again", jsm.addStream(config).getConfiguration().getName().equals("JAVA"), null);
      must("stream not found", error(() -> jsm.getStreamInfo("NOPE")) == 10059, null);
      JetStream js = nc.jetStream();
      for (int number = 1; number <= 5; number++) {
        must("publish", js.publish("java.a", ("" + number).getBytes()).getSeqno() == number, null);
      }
      List<CompletableFuture<PublishAck>> acks = new ArrayList<>();
      for (int number = 6; number <= 10; number++) {
        acks.add(js.publishAsync("java.b", ("" + number).getBytes()));
      }
      for (CompletableFuture<PublishAck> ack : acks) {
        must("publish async", ack.get(10, TimeUnit.SECONDS).getSeqno() > 5, ack);
      }
      must("info", jsm.getStreamInfo("JAVA").getStreamState().getMsgCount() == 10, null);
      must("get", new String(jsm.getMessage("JAVA", 3).getData()).equals("3"), null);
      must("last of a subject", jsm.getLastMessage("JAVA", "java.a").getSeq() == 5, null);
      must("no message", error(() -> jsm.getMessage("JAVA", 99)) == 10037, null);
      consumers(nc, jsm, js);
      buckets(nc);
      must("delete stream", jsm.deleteStream("JAVA"), null);
    }
    System.out.println("all done");
  }

  private static void consumers(Connection nc, JetStreamManagement jsm, JetStream js)
      throws Exception {
    StreamContext stream = nc.getStreamContext("JAVA");
    ConsumerConfiguration durable =
        ConsumerConfiguration.builder().durable("d").ackPolicy(AckPolicy.Explicit).build();
    ConsumerContext consumer = stream.createOrUpdateConsumer(durable);
    try (FetchConsumer fetched = consumer.fetchMessages(4)) {
      for (int number = 1; number <= 4; number++) {
        Message message = fetched.nextMessage();
        must("fetch", text(message).equals("" + number), text(message));
        if (number == 4) {
          message.nakWithDelay(Duration.ofMillis(100));
        } else {
          message.ackSync(Duration.ofSeconds(5));
        }
      }
    }
    Message again = consumer.next(Duration.ofSeconds(5));
    while (text(again).equals("4") == false) {
      again.inProgress();
      again.ack();
      again = consumer.next(Duration.ofSeconds(5));
    }
    must("redelivered", again.metaData().deliveredCount() == 2, again.metaData());
    again.term();
    int left = 0;
    try (IterableConsumer several = consumer.iterate()) {
      while (consumer.getConsumerInfo().getNumPending() > 0) {
        Message message = several.nextMessage(5000);
        message.ackSync(Duration.ofSeconds(5));
        left++;
      }
    }
    System.out.println("ok iterate " + left);
    BlockingQueue<String> seen = new LinkedBlockingQueue<>();
    try (MessageConsumer consuming =
        consumer.consume(
            message -> {
              message.ack();
              seen.add(text(message));
            })) {
      js.publish("java.late", "late".getBytes());
      String late;
      do {
        late = seen.poll(20, TimeUnit.SECONDS);
        must("consumed", late != null, late);
      } while (!late.equals("late"));
    }
    FetchConsumeOptions atOnce = FetchConsumeOptions.builder().maxMessages(1).noWait().build();
    try (FetchConsumer none = consumer.fetch(atOnce)) {
      must("nothing more", none.nextMessage() == null, null);
    }
    must("consumer names", jsm.getConsumerNames("JAVA").contains("d"), null);
    must("delete consumer", jsm.deleteConsumer("JAVA", "d"), null);
    must("consumer not found", error(() -> jsm.getConsumerInfo("JAVA", "d")) == 10014, null);

    ConsumerConfiguration since =
        ConsumerConfiguration.builder()
            .name("since")
            .ackPolicy(AckPolicy.None)
            .deliverPolicy(DeliverPolicy.ByStartTime)
            .startTime(ZonedDateTime.now().minusHours(1))
            .filterSubject("java.b")
            .build();
    ConsumerInfo info = jsm.addOrUpdateConsumer("JAVA", since);
    must("by time, of a subject", info.getNumPending() == 5, info.getNumPending());

    var ordered = stream.createOrderedConsumer(new OrderedConsumerConfiguration());
    try (IterableConsumer several = ordered.iterate()) {
      for (int sequence = 1; sequence <= 11; sequence++) {
        Message message = several.nextMessage(5000);
        must("ordered", message.metaData().streamSequence() == sequence, message.metaData());
      }
    }
    PushSubscribeOptions push =
        PushSubscribeOptions.builder()
            .configuration(ConsumerConfiguration.builder().flowControl(1000).build())
            .build();
    JetStreamSubscription pushed = js.subscribe("java.>", push);
    for (int number = 1; number <= 10; number++) {
      Message message = pushed.nextMessage(5000);
      must("push", text(message).equals("" + number), text(message));
      message.ack();
    }
    pushed.unsubscribe();
    JetStreamSubscription orderedPush =
        js.subscribe("java.>", PushSubscribeOptions.builder().ordered(true).build());
    for (int number = 1; number <= 10; number++) {
      Message message = orderedPush.nextMessage(5000);
      must("ordered push", text(message).equals("" + number), text(message));
    }
    orderedPush.unsubscribe();
    must("purge", jsm.purgeStream("JAVA", PurgeOptions.builder().keep(2).build()).getPurged() == 9, null);
    must("kept", jsm.getStreamInfo("JAVA").getStreamState().getMsgCount() == 2, null);
  }

  private static void buckets(Connection nc) throws Exception {
    var kvm = nc.keyValueManagement();
    kvm.create(KeyValueConfiguration.builder().name("JAVA").maxHistoryPerKey(3).build());
    KeyValue kv = nc.keyValue("JAVA");
    must("create", kv.create("a.b", "1".getBytes()) == 1, null);
    must("key exists", error(() -> kv.create("a.b", "x".getBytes())) == 10071, null);
    must("update", kv.update("a.b", "2".getBytes(), 1) == 2, null);
    must("put", kv.put("c", "3") == 3, null);
    must("get", kv.get("a.b").getValueAsString().equals("2"), null);
    must("keys", kv.keys().size() == 2, kv.keys());
    must("history", kv.history("a.b").size() == 2, null);
    BlockingQueue<String> watched = new LinkedBlockingQueue<>();
    KeyValueWatcher watcher =
        new KeyValueWatcher() {
          @Override
          public void watch(KeyValueEntry entry) {
            watched.add(entry.getKey() + "=" + entry.getValueAsString());
          }

          @Override
          public void endOfData() {
            watched.add("end");
          }
        };
    try (var watching = kv.watch("a.*", watcher)) {
      must("watch", "a.b=2".equals(watched.poll(10, TimeUnit.SECONDS)), watched);
      must("watch's end", "end".equals(watched.poll(10, TimeUnit.SECONDS)), watched);
      kv.put("a.b", "4");
      must("watch's update", "a.b=4".equals(watched.poll(10, TimeUnit.SECONDS)), watched);
    }
    kv.delete("c");
    must("deleted", kv.get("c") == null, null);
    kv.purge("a.b");
    must("purged", kv.keys().isEmpty(), kv.keys());
    must("status", kv.getStatus().getMaxHistoryPerKey() == 3, null);
    kvm.delete("JAVA");
  }
}
