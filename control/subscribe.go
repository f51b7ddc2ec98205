package control

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"strings"

	"github.com/hyperfs/hyperfs/overlay"
)

// maxEvent is the longest line of an event in bytes: it may hold a custom document of a turn.
const maxEvent = maxLargeBody + 1<<20

// Events subscribes to changes of state. When it returns, the subscription is in force. The channel is closed when ctx
// ends, when the daemon does, or when the connection breaks. Who reads too slowly gets an event of the type EventLost.
func (c *Client) Events(ctx context.Context) (<-chan overlay.Event, error) {
	return c.events(ctx, "events", "/v1/events", nil)
}

func (c *Client) events(ctx context.Context, op, path string, q url.Values) (<-chan overlay.Event, error) {
	resp, err := c.stream(ctx, op, path, q)
	if err != nil {
		return nil, err
	}
	ch := make(chan overlay.Event)
	go func() {
		defer close(ch)
		defer resp.Body.Close()
		readEvents(ctx, resp.Body, ch)
	}()
	return ch, nil
}

// readEvents decodes server-sent events, of which it needs the data alone: each of ours is one line of JSON.
func readEvents(ctx context.Context, r io.Reader, ch chan<- overlay.Event) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var ev overlay.Event
		if json.Unmarshal([]byte(data), &ev) != nil {
			return
		}
		select {
		case ch <- ev:
		case <-ctx.Done():
			return
		}
	}
}
