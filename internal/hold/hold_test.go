package hold

import (
	"sync"
	"testing"
)

func TestANameIsHeldUntilNobodyHoldsIt(t *testing.T) {
	var s Set
	var mu sync.Mutex
	if s.Held("a") != nil {
		t.Fatal("a name is held that nobody has held")
	}
	mu.Lock()
	first, second := s.Hold("a", &mu), s.Hold("a", &mu)
	s.Hold("b", &mu)
	ends := s.Held("a")
	mu.Unlock()
	first()
	select {
	case <-ends:
		t.Fatal("it ends while somebody holds it")
	default:
	}
	second()
	<-ends
	if s.Held("a") != nil || s.Held("b") == nil {
		t.Fatal(s.held)
	}
}
