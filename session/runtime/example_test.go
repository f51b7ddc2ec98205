package runtime_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/hyperfs/hyperfs/session/runtime"
	"github.com/hyperfs/hyperfs/session/runtime/javascript"
)

// What the first phase finds, the second one works with: it never leaves the session.
func ExampleShared() {
	ctx := context.Background()
	shared, err := runtime.NewShared(runtime.SharedOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer shared.Close()
	first, err := javascript.New(runtime.Limits{})
	if err != nil {
		log.Fatal(err)
	}
	err = shared.AdoptDistillerSession(ctx, first, runtime.AdoptOptions{
		Inputs: map[string]any{"lines": []string{"ok", "error: disk", "ok", "error: net"}},
		PhaseGlobals: map[string]any{"final": runtime.Func(func(_ context.Context, args []json.RawMessage) (any, error) {
			fmt.Printf("asked to %s\n", args[0])
			return nil, nil
		})},
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := shared.Execute(ctx, `await final('count them', inputs.lines.filter((l) => l.startsWith('error')))`); err != nil {
		log.Fatal(err)
	}
	if err := shared.BeginExecutorPhase(ctx, runtime.PhaseOptions{}); err != nil {
		log.Fatal(err)
	}
	r, err := shared.Execute(ctx, `evidence.length`)
	_, crossed := shared.FallbackEvidence()
	fmt.Println(shared.Mode(), string(r.Value.Value), crossed, err)
	// Output:
	// asked to "count them"
	// shared 2 false <nil>
}

// Variables that were saved are there again in another session.
func ExampleMarshalBindings() {
	ctx := context.Background()
	one, err := javascript.New(runtime.Limits{})
	if err != nil {
		log.Fatal(err)
	}
	defer one.Close()
	if _, err := one.Execute(ctx, `let seen = {files: 3}, when = new Date()`); err != nil {
		log.Fatal(err)
	}
	entries, err := one.Snapshot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range entries {
		fmt.Printf("%s: %s%s\n", e.Name, e.Value, e.Why)
	}
	saved, _ := runtime.MarshalBindings(one.Language(), entries)

	other, err := javascript.New(runtime.Limits{})
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close()
	_, entries, err = runtime.UnmarshalBindings(saved)
	if err != nil {
		log.Fatal(err)
	}
	restored, err := other.Restore(ctx, entries)
	r, _ := other.Execute(ctx, `seen.files + 1`)
	fmt.Println(len(restored), string(r.Value.Value), err)
	// Output:
	// seen: {"files":3}
	// when: it is of type Date, and would come back as another one
	// 1 4 <nil>
}
