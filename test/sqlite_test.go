package test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// database is what the test of SQLite works on.
type database struct {
	journal     string // SQLite's journal mode
	mib         int    // of rows with 1 KiB each
	checkpoints int
	changes     int // transactions between two of them
	onDisk      bool
}

func TestEveryCheckpointOfADatabaseComesBack(t *testing.T) {
	t.Parallel()
	needMount(t)
	if _, err := exec.LookPath("sqlite3"); err != nil {
		missing(t, err.Error())
	}
	for _, journal := range []string{"delete", "wal"} {
		d := database{journal: journal, mib: 20, checkpoints: 20, changes: 10}
		if os.Getenv(envSoak) != "" {
			d.mib, d.changes, d.onDisk = 200, 50, true
		}
		t.Run(journal, d.test)
	}
}

func (d database) test(t *testing.T) {
	dir := memory(t)
	if d.onDisk {
		dir = t.TempDir()
	}
	ws, store := filepath.Join(dir, "workspace"), filepath.Join(dir, "store")
	if err := os.Mkdir(ws, 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(ws, "a.db")
	d.create(t, name)
	size := bytesBelow(t, ws)
	sub := mountForTest(t, ws, mountOptions{plain: true, big: true, flags: []string{"--tier", "pure-manifest", "--store", store}})
	db := openSQL(t, name)
	ids, rows := d.work(t, sub, db)
	db.close()
	if kept := bytesBelow(t, filepath.Join(store, "backup")); kept == 0 || kept > size*int64(d.checkpoints)/3 {
		t.Errorf("of a database of %d bytes %d are kept at %d checkpoints", size, kept, d.checkpoints)
	} else {
		t.Logf("of a database of %d bytes %d are kept at %d checkpoints", size, kept, d.checkpoints)
	}
	for _, i := range rand.New(rand.NewPCG(5, 5)).Perm(len(ids)) {
		mustRollback(t, sub, ids[i])
		db := openSQL(t, name)
		if got := db.ask("pragma integrity_check;"); got != "ok" {
			t.Errorf("at checkpoint %d SQLite says: %s", i, got)
		}
		if got := db.ask(state); got != rows[i] {
			t.Errorf("at checkpoint %d the database holds %s, and should hold %s", i, got, rows[i])
		}
		db.close()
	}
	if err := sub.Check(true); err != nil {
		t.Error(err)
	}
}

// state tells all that transactions change.
const state = "select (select n from done), count(*), sum(v), sum(v * id % 1000003), sum(length(pad)) from t;"

// create makes the database where nothing is mounted.
func (d database) create(t *testing.T, name string) {
	t.Helper()
	db := openSQL(t, name)
	defer db.close()
	db.ask(fmt.Sprintf(`pragma synchronous = off; pragma journal_mode = %s;
		create table t(id integer primary key, v integer, pad blob); create table done(n integer); insert into done values (0);
		begin; with recursive c(x) as (select 1 union all select x + 1 from c where x < %d) insert into t select x, x, randomblob(1000) from c; commit;
		select 'made';`, d.journal, d.mib<<10))
}

// work makes checkpoints, and transactions after each, over one connection that stays open. It gives the checkpoints and what the database held then.
func (d database) work(t *testing.T, sub *mountSubject, db *sqlite) (ids, rows []string) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	db.ask("pragma synchronous = off; select 'set';")
	for range d.checkpoints {
		rows, ids = append(rows, db.ask(state)), append(ids, mustSnapshot(t, sub))
		var b strings.Builder
		for range d.changes {
			b.WriteString("begin; update done set n = n + 1;")
			for range 1 + r.IntN(5) {
				id := 1 + r.IntN(d.mib<<10)
				switch r.IntN(8) {
				case 0:
					fmt.Fprintf(&b, "insert into t(v, pad) values (%d, randomblob(3000));", id)
				case 1:
					fmt.Fprintf(&b, "delete from t where id = %d;", id)
				default:
					fmt.Fprintf(&b, "update t set v = v + %d, pad = randomblob(1000) where id = %d;", id, id)
				}
			}
			b.WriteString("commit;")
		}
		db.ask(b.String() + "select 'done';")
	}
	return ids, rows
}

// sqlite is a connection to a database, held by the program sqlite3.
type sqlite struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	err bytes.Buffer
}

func openSQL(t *testing.T, name string) *sqlite {
	t.Helper()
	s := &sqlite{t: t, cmd: exec.Command("sqlite3", "-batch", "-bail", name)}
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out, s.cmd.Stderr = bufio.NewReader(out), &s.err
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

// ask has statements executed and gives the last line of what they print.
func (s *sqlite) ask(statements string) string {
	s.t.Helper()
	const end = "-- end --"
	if _, err := fmt.Fprintf(s.in, "%s\n.print %s\n", statements, end); err != nil {
		s.t.Fatalf("sqlite3: %v: %s", err, s.err.String())
	}
	last := ""
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("sqlite3: %v: %s", err, s.err.String())
		}
		if line = strings.TrimSuffix(line, "\n"); line == end {
			return last
		}
		last = line
	}
}

func (s *sqlite) close() {
	s.t.Helper()
	if err := s.in.Close(); err != nil {
		s.t.Error(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("sqlite3: %v: %s", err, s.err.String())
	}
}
