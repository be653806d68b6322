//! Store orders, bill each once, and keep a price, with stock async-nats.
//!
//!     cargo run -- nats://127.0.0.1:4222
use async_nats::jetstream::{self, consumer::pull, kv, stream};
use futures::StreamExt;

#[tokio::main]
async fn main() -> Result<(), async_nats::Error> {
    let url = std::env::args().nth(1).expect("the URL of a NATS server");
    let js = jetstream::new(async_nats::connect(url).await?);
    let orders = js
        .create_stream(stream::Config {
            name: "orders".into(),
            subjects: vec!["orders.>".into()],
            ..Default::default()
        })
        .await?;
    for number in 1..=3 {
        let order = format!("order {number}");
        let ack = js.publish("orders.paris", order.into()).await?.await?;
        println!("order {number} is synced as {}", ack.sequence);
    }

    let durable = pull::Config { durable_name: Some("billing".into()), ..Default::default() };
    let billing = orders.create_consumer(durable).await?;
    let mut batch = billing.fetch().max_messages(3).messages().await?;
    while let Some(message) = batch.next().await {
        let message = message?;
        message.double_ack().await?; // returns once the ack is stored, so no redelivery
        println!("billed: {}", String::from_utf8_lossy(&message.payload));
    }

    let config = kv::Config { bucket: "prices".into(), ..Default::default() };
    let prices = js.create_key_value(config).await?;
    prices.put("apple", "3".into()).await?;
    let price = prices.get("apple").await?.expect("it was put");
    println!("an apple costs {}", String::from_utf8_lossy(&price));
    Ok(())
}
