import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The Beam workload on Kafka's own Java client: A appenders over N producers, each appender waits
 * for its own ack before it sends the next record.
 *
 * <p>Stays alive between loads so that the JVM stays warm: reads one load per line from stdin,
 * "connections appenders size_bytes seconds warmup partitions flush max_appends", and prints one
 * JSON object per load, with the keys of the native generator. Each load has its own topic, primed
 * with a few records per partition and deleted afterwards. Producers: acks=all, max.in.flight=1,
 * linger 0, no compression, batches large enough for all appenders of a producer. Appenders are
 * asynchronous slots, driven by the ack callbacks.
 */
public final class KafkaAppenders {
    static final int SUB_BITS = 7, SUB = 1 << SUB_BITS, BUCKETS = (64 - SUB_BITS) * SUB;
    static final int PRIME_ROUNDS = 3;

    record Load(int connections, int appenders, int size, double seconds, double warmup,
                int partitions, boolean flush, long maxAppends) {
        static Load parse(String line) {
            String[] w = line.trim().split(" ");
            return new Load(Integer.parseInt(w[0]), Integer.parseInt(w[1]), Integer.parseInt(w[2]),
                Double.parseDouble(w[3]), Double.parseDouble(w[4]), Integer.parseInt(w[5]),
                w[6].equals("1"), Long.parseLong(w[7]));
        }
    }

    /** Log-linear histogram in nanoseconds; one per producer, whose callbacks share one thread. */
    static final class Histogram {
        final long[] count = new long[BUCKETS];
        long total, max;

        void add(long ns) {
            int index = (int) ns;
            if (ns >= SUB) {
                int shift = 63 - Long.numberOfLeadingZeros(ns) - SUB_BITS;
                index = Math.min((shift + 1) * SUB + (int) ((ns >> shift) - SUB), BUCKETS - 1);
            }
            count[index]++;
            total++;
            max = Math.max(max, ns);
        }

        void merge(Histogram other) {
            for (int i = 0; i < BUCKETS; i++) count[i] += other.count[i];
            total += other.total;
            max = Math.max(max, other.max);
        }

        double quantileUs(double q) {
            long wanted = Math.max(1, Math.round(q * total)), seen = 0;
            for (int i = 0; i < BUCKETS && total > 0; i++) {
                seen += count[i];
                if (seen < wanted) continue;
                if (i < SUB) return i / 1e3;
                double middle = (SUB + i % SUB + 0.5) * (1L << (i / SUB - 1));
                return Math.min(middle, max) / 1e3;
            }
            return 0;
        }
    }

    /** One load: its producers, its slots and its counters. */
    static final class Run {
        final Load load;
        final String topic;
        final List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        final List<Histogram> histograms = new ArrayList<>();
        final AtomicInteger busy = new AtomicInteger(), nextPartition = new AtomicInteger();
        final AtomicLong replies = new AtomicLong(), errors = new AtomicLong();
        final AtomicReference<String> firstError = new AtomicReference<>("");
        volatile long measureFrom, stop;

        Run(Load load, String topic) {
            this.load = load;
            this.topic = topic;
        }

        void send(int producer, byte[] payload) {
            long sent = System.nanoTime();
            if (sent >= stop || replies.get() >= load.maxAppends()) return;
            int partition = Math.floorMod(nextPartition.getAndIncrement(), load.partitions());
            busy.incrementAndGet();
            producers.get(producer).send(
                new ProducerRecord<>(topic, partition, null, payload),
                (metadata, error) -> onAck(producer, payload, sent, error));
        }

        void onAck(int producer, byte[] payload, long sent, Exception error) {
            long now = System.nanoTime();
            busy.decrementAndGet();
            replies.incrementAndGet();
            if (error != null) {
                errors.incrementAndGet();
                firstError.compareAndSet("", error.toString());
            } else if (now >= measureFrom && now <= stop) {
                histograms.get(producer).add(now - sent);
            }
            send(producer, payload);
        }

        /**
         * A few records to every partition, so that the clock sees no log being created: Kafka
         * makes the first entry of a partition's index files, which is slow, after 4 KiB.
         */
        void prime() throws InterruptedException {
            for (int round = 0; round < PRIME_ROUNDS; round++) {
                CountDownLatch left = new CountDownLatch(load.partitions());
                for (int i = 0; i < load.partitions(); i++)
                    producers.get(0).send(new ProducerRecord<>(topic, i, null, new byte[5000]),
                        (metadata, error) -> left.countDown());
                left.await(120, TimeUnit.SECONDS);
            }
        }

        String execute(String servers) throws InterruptedException {
            for (int i = 0; i < load.connections(); i++) {
                producers.add(new KafkaProducer<>(producerConfig(servers, load)));
                producers.get(i).partitionsFor(topic); // fetches metadata before the clock starts
                histograms.add(new Histogram());
            }
            prime();
            long start = System.nanoTime();
            long cpu = cpuNanos();
            measureFrom = start + (long) (load.seconds() * load.warmup() * 1e9);
            stop = start + (long) (load.seconds() * 1e9);
            Random random = new Random(1);
            for (int i = 0; i < load.appenders(); i++) {
                byte[] payload = new byte[load.size()];
                random.nextBytes(payload);
                send(i % load.connections(), payload);
            }
            while (System.nanoTime() < stop && replies.get() < load.maxAppends()) Thread.sleep(2);
            long ended = Math.min(System.nanoTime(), stop);
            stop = ended;
            long giveUp = System.nanoTime() + 3_000_000_000L;
            while (busy.get() > 0 && System.nanoTime() < giveUp) Thread.sleep(2);
            String json = json((ended - measureFrom) / 1e9, (cpuNanos() - cpu) / 1e9);
            for (KafkaProducer<byte[], byte[]> p : producers) p.close(Duration.ofSeconds(1));
            return json;
        }

        String json(double elapsed, double cpu) {
            Histogram all = new Histogram();
            histograms.forEach(all::merge);
            return String.format(Locale.ROOT,
                "{\"appends_per_s\": %.1f, \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, "
                    + "\"p999_us\": %.1f, \"max_us\": %.1f, \"acks\": %d, \"replies_total\": %d, "
                    + "\"errors\": %d, \"unanswered\": %d, \"elapsed_s\": %.3f, "
                    + "\"client_cpu_s\": %.3f, \"first_error\": \"%s\"}",
                all.total / elapsed, all.quantileUs(0.5), all.quantileUs(0.9), all.quantileUs(0.99),
                all.quantileUs(0.999), all.max / 1e3, all.total, replies.get(), errors.get(),
                busy.get(), elapsed, cpu, firstError.get().replaceAll("[\"\\\\\\n]", " "));
        }
    }

    static long cpuNanos() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    static Properties producerConfig(String servers, Load load) {
        int share = (load.appenders() + load.connections() - 1) / load.connections();
        Properties p = new Properties();
        p.put("bootstrap.servers", servers);
        p.put("acks", "all");
        p.put("enable.idempotence", "false");
        p.put("max.in.flight.requests.per.connection", "1");
        p.put("linger.ms", "0");
        p.put("batch.size", Math.max(16384, share * (load.size() + 128) + 1024));
        p.put("max.request.size", Math.max(1 << 20, share * (load.size() + 128) + 4096));
        p.put("delivery.timeout.ms", "30000");
        p.put("request.timeout.ms", "15000");
        p.put("key.serializer", ByteArraySerializer.class.getName());
        p.put("value.serializer", ByteArraySerializer.class.getName());
        return p;
    }

    public static void main(String[] args) throws Exception {
        String servers = args[0];
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            System.out.println("{\"event\": \"ready\"}");
            int number = 0;
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                Load load = Load.parse(line);
                String topic = "bench-" + number++;
                NewTopic wanted = new NewTopic(topic, load.partitions(), (short) 1).configs(Map.of(
                    "flush.messages", load.flush() ? "1" : Long.toString(Long.MAX_VALUE),
                    "file.delete.delay.ms", "1000"));
                admin.createTopics(List.of(wanted)).all().get();
                System.out.println(new Run(load, topic).execute(servers));
                System.out.flush();
                admin.deleteTopics(List.of(topic)).all().get();
                Thread.sleep(1500); // file.delete.delay.ms, so that no deletion meets the next load
            }
        }
    }
}
