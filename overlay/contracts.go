package overlay

import (
	"cmp"
	"encoding/json"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/hyperfs/hyperfs/checkpoint"
	"github.com/hyperfs/hyperfs/internal/errs"
)

// ContractBook keeps the contracts and the tracked paths of a store, for the backends. Its methods may be called concurrently.
type ContractBook struct {
	store *checkpoint.Store
	root  string // of the workspace, absolute

	mu        sync.Mutex       // guards what follows
	tracked   []string         // sorted
	contracts []OutputContract // oldest first
}

// metaContracts is where the book is in the store.
const metaContracts = "contracts"

// contractRecord is the book in the store.
type contractRecord struct {
	Tracked   []string         `json:"tracked"`
	Contracts []OutputContract `json:"contracts"`
}

// OpenContracts reads the book of a store.
func OpenContracts(store *checkpoint.Store, root string) (*ContractBook, error) {
	b := &ContractBook{store: store, root: root}
	var data []byte
	if err := store.View(func(tx *checkpoint.Tx) (err error) { data, err = tx.Meta(metaContracts); return err }); err != nil || data == nil {
		return b, err
	}
	var r contractRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, errs.New(errs.Integrity, "open workspace", "", "the contracts can't be read: %w", err)
	}
	b.tracked, b.contracts = r.Tracked, r.Contracts
	return b, nil
}

// Path makes a workspace-relative path of what a user names. PATH says that it is none: it is empty or the workspace itself, leads outside or into the store, or can't
// be carried as text.
func (b *ContractBook) Path(op, name string) (string, error) {
	bad := func(why string) (string, error) { return "", errs.New(errs.Path, op, name, "%s", why) }
	switch {
	case name == "":
		return bad("the path is empty")
	case strings.IndexByte(name, 0) >= 0:
		return bad("the path has a NUL in it")
	case !utf8.ValidString(name):
		return bad("the path is not UTF-8")
	}
	if filepath.IsAbs(name) {
		rel, err := filepath.Rel(b.root, name)
		if err != nil || !filepath.IsLocal(rel) {
			return bad("it is outside of the workspace")
		}
		name = rel
	}
	slashed := filepath.ToSlash(name)
	if slices.Contains(strings.Split(slashed, "/"), "..") {
		return bad("it has .. in it")
	}
	clean := path.Clean(slashed)
	switch {
	case clean == ".":
		return bad("it is the workspace itself")
	case clean == StoreName, strings.HasPrefix(clean, StoreName+"/"):
		return bad("it is in the store")
	}
	return clean, nil
}

// Declare adds a contract, checked. Before it is kept, then is called with the paths that are protected by it.
func (b *ContractBook) Declare(c OutputContract, then func(paths []string) error) (OutputContract, error) {
	if c.Tool == "" {
		return c, errs.New(errs.Usage, "declare outputs", "", "the tool has no name")
	}
	if len(c.Outputs) == 0 {
		return c, errs.New(errs.Usage, "declare outputs", c.Tool, "there are no outputs")
	}
	c.Outputs = slices.Clone(c.Outputs)
	for i := range c.Outputs {
		o := &c.Outputs[i]
		o.Missing = false
		var err error
		if o.Path, err = b.Path("declare outputs", o.Path); err != nil {
			return c, err
		}
	}
	c.DeclaredAt = time.Now().UTC()
	b.mu.Lock()
	defer b.mu.Unlock()
	next := append(slices.Clone(b.contracts), c)
	return c, b.change(b.tracked, next, then)
}

// Track adds paths, checked, and gives all that are tracked. Before they are kept, then is called with all paths that are protected.
func (b *ContractBook) Track(names []string, then func(paths []string) error) ([]string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := slices.Clone(b.tracked)
	for _, name := range names {
		p, err := b.Path("track", name)
		if err != nil {
			return nil, err
		}
		next = append(next, p)
	}
	slices.Sort(next)
	next = slices.Compact(next)
	if len(next) > len(b.tracked) {
		if err := b.change(next, b.contracts, then); err != nil {
			return nil, err
		}
	}
	return append([]string{}, b.tracked...), nil
}

// End forgets the contracts of checkpoints that are not active any more. Then is called with the paths that are protected still.
func (b *ContractBook) End(active func(id string) bool, then func(paths []string) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := slices.DeleteFunc(slices.Clone(b.contracts), func(c OutputContract) bool { return c.Checkpoint != "" && !active(c.Checkpoint) })
	if len(next) == len(b.contracts) {
		return nil
	}
	return b.change(b.tracked, next, then)
}

// change keeps another book, here and in the store. The caller holds mu.
func (b *ContractBook) change(tracked []string, contracts []OutputContract, then func(paths []string) error) error {
	data, err := json.Marshal(contractRecord{Tracked: tracked, Contracts: contracts})
	if err != nil {
		return err
	}
	if err := then(pathsIn(tracked, contracts)); err != nil {
		return err
	}
	if err := b.store.Update(func(tx *checkpoint.Tx) error { return tx.PutMeta(metaContracts, data) }); err != nil {
		return err
	}
	b.tracked, b.contracts = tracked, contracts
	return nil
}

// Tracked gives the tracked paths, sorted.
func (b *ContractBook) Tracked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string{}, b.tracked...)
}

// Outputs gives the contracts for a checkpoint, "" all of them, oldest first; missing tells what is not there now.
func (b *ContractBook) Outputs(id string, missing func(path string) bool) []OutputContract {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []OutputContract{}
	for _, c := range b.contracts {
		if id != "" && c.Checkpoint != "" && c.Checkpoint != id {
			continue
		}
		c.Outputs = slices.Clone(c.Outputs)
		for i := range c.Outputs {
			c.Outputs[i].Missing = missing(c.Outputs[i].Path)
		}
		list = append(list, c)
	}
	return list
}

// Paths gives every path that is tracked or a declared output, sorted.
func (b *ContractBook) Paths() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return pathsIn(b.tracked, b.contracts)
}

func pathsIn(tracked []string, contracts []OutputContract) []string {
	all := slices.Clone(tracked)
	for _, c := range contracts {
		for _, o := range c.Outputs {
			all = append(all, o.Path)
		}
	}
	slices.SortFunc(all, cmp.Compare[string])
	return slices.Compact(all)
}
