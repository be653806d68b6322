import io.nats.client.Connection;
import io.nats.client.JetStream;
import io.nats.client.KeyValue;
import io.nats.client.Message;
import io.nats.client.Nats;
import io.nats.client.api.ConsumerConfiguration;
import io.nats.client.api.KeyValueConfiguration;
import io.nats.client.api.StreamConfiguration;
import java.time.Duration;

/** Stores orders, bills each once, and keeps a price, with stock jnats. */
public final class Orders {
  public static void main(String[] arguments) throws Exception {
    try (Connection connection = Nats.connect(arguments[0])) {
      JetStream js = connection.jetStream();
      connection
          .jetStreamManagement()
          .addStream(StreamConfiguration.builder().name("orders").subjects("orders.>").build());
      for (int number = 1; number <= 3; number++) {
        long sequence = js.publish("orders.paris", ("order " + number).getBytes()).getSeqno();
        System.out.println("order " + number + " is synced as " + sequence);
      }

      ConsumerConfiguration durable = ConsumerConfiguration.builder().durable("billing").build();
      connection.jetStreamManagement().addOrUpdateConsumer("orders", durable);
      try (var billing = connection.getConsumerContext("orders", "billing").fetchMessages(3)) {
        Message message;
        while ((message = billing.nextMessage()) != null) {
          // Returns once the ack is stored, so no redelivery.
          message.ackSync(Duration.ofSeconds(5));
          System.out.println("billed: " + new String(message.getData()));
        }
      }

      connection
          .keyValueManagement()
          .create(KeyValueConfiguration.builder().name("prices").build());
      KeyValue prices = connection.keyValue("prices");
      prices.put("apple", "3");
      System.out.println("an apple costs " + prices.get("apple").getValueAsString());
    }
  }
}
