module example/orders

go 1.24

require github.com/apache/arrow-go/v18 v18.8.0
