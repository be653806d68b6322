// Program orders creates a stream, appends records and reads them over Arrow Flight.
//
//	go run . 127.0.0.1:9293
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	client, err := flight.NewClientWithMiddleware(os.Args[1], nil, nil, plain)
	check(err)
	defer client.Close()

	// Everything but records is an action: a name, and a body in JSON.
	body, err := json.Marshal(map[string]any{"name": "orders", "subject": "orders.>"})
	check(err)
	answers, err := client.DoAction(ctx, &flight.Action{Type: "create_stream", Body: body})
	check(err)
	_, err = answers.Recv()
	check(err)

	// A put: record batches with a column "value", and an acknowledgement for each.
	schema := arrow.NewSchema([]arrow.Field{{Name: "value", Type: arrow.BinaryTypes.Binary}}, nil)
	put, err := client.DoPut(ctx)
	check(err)
	writer := flight.NewRecordWriter(put, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(command(map[string]any{"stream": "orders"}))
	rows := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for number := 1; number <= 3; number++ {
		rows.Field(0).(*array.BinaryBuilder).Append([]byte(fmt.Sprintf("order %d", number)))
	}
	check(writer.Write(rows.NewRecordBatch()))
	answer, err := put.Recv()
	check(err)
	var ack struct {
		Ranges [][3]int // partition, first offset, number of records
		Error  *struct{ Code, Message string }
	}
	check(json.Unmarshal(answer.AppMetadata, &ack))
	if ack.Error != nil {
		log.Fatal(ack.Error.Message)
	}
	fmt.Printf("%d orders are synced from offset %d on\n", ack.Ranges[0][2], ack.Ranges[0][1])
	check(writer.Close())
	check(put.CloseSend())

	// A read: GetFlightInfo resolves it, and each endpoint's ticket returns a partition's records.
	info, err := client.GetFlightInfo(ctx, command(map[string]any{"stream": "orders"}))
	check(err)
	for _, endpoint := range info.Endpoint {
		stream, err := client.DoGet(ctx, endpoint.Ticket)
		check(err)
		reader, err := flight.NewRecordReader(stream)
		check(err)
		for {
			batch, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			check(err)
			offsets := batch.Column(column(batch, "offset")).(*array.Int64)
			values := batch.Column(column(batch, "value")).(*array.Binary)
			for row := range int(batch.NumRows()) {
				fmt.Printf("%d: %s\n", offsets.Value(row), values.Value(row))
			}
		}
		reader.Release()
	}
}

// command returns a request as Flight's descriptors carry it.
func command(request map[string]any) *flight.FlightDescriptor {
	body, err := json.Marshal(request)
	check(err)
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: body}
}

func column(batch arrow.RecordBatch, name string) int {
	return batch.Schema().FieldIndices(name)[0]
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
