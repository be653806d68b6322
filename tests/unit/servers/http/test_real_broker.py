"""The pages of a real broker show its present state."""

import json
import urllib.request

import strandline
from strandline.testing import Server


def get(url):
    with urllib.request.urlopen(url, timeout=60) as response:
        return response.read().decode()


def test_what_was_stored_and_read_is_counted():
    """Records appended and read through Flight are on the page, in the metrics, in the API."""
    with Server(http_port=0) as url, strandline.connect(url) as client:
        client.create_stream("orders", partitions=2)
        for number in range(7):
            client.append("orders", b"x", partition=number % 2, message_id=str(number))
        client.append("orders", b"x", partition=0, message_id="0")
        assert client.read("orders").read_all().num_rows == 7

        metrics = get(f"{url.http_url}/metrics")
        for line in (
            "strandline_records_appended_total 7.0",
            "strandline_duplicates_total 1.0",
            "strandline_read_records_total 7.0",
            "strandline_partitions 2.0",
            "strandline_ready 1.0",
            'strandline_partition_high_watermark{partition="0",stream="orders"} 4.0',
        ):
            assert line in metrics.splitlines(), line
        [stream] = json.loads(get(f"{url.http_url}/api/streams"))
        assert [part["high_watermark"] for part in stream["partitions"]] == [4, 3]
        assert "orders" in get(f"{url.http_url}/streams")
        assert "Healthy." in get(url.http_url)
        assert "High watermark" in get(f"{url.http_url}/streams/orders")
        assert get(f"{url.http_url}/health/ready") == "ready\n"
