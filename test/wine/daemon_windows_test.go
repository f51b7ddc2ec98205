package wine

import (
	"encoding/json"
	"os"
	"strconv"
)

func itoa(n int) string { return strconv.Itoa(n) }

// killDaemon ends the daemon as an end of the task does, and waits until it is gone.
func (w *workspace) killDaemon() {
	w.Helper()
	var status struct {
		Daemon struct {
			PID int `json:"pid"`
		} `json:"daemon"`
	}
	w.must(json.Unmarshal([]byte(w.fine("status", "--json")), &status))
	if status.Daemon.PID == 0 || status.Daemon.PID == os.Getpid() {
		w.Fatalf("the daemon is process %d", status.Daemon.PID)
	}
	p, err := os.FindProcess(status.Daemon.PID)
	w.must(err)
	w.must(p.Kill())
	_, err = p.Wait()
	w.must(err)
}
