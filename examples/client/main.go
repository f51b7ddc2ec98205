// A program that makes one call after the other.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/hyperfs/hyperfs/control"
	"github.com/hyperfs/hyperfs/overlay"
)

func main() {
	ctx := context.Background()
	client, err := control.Dial(ctx, ".")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	k, err := client.Snapshot(ctx, overlay.SnapshotOptions{Message: "before the build", Agent: "builder"})
	if err != nil {
		log.Fatal(err)
	}
	d, err := client.Diff(ctx, control.Between{From: k.ID}, false)
	fmt.Println(len(d.Changes), err)
}
