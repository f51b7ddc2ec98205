package hold

import "testing"

func TestANameIsHeldUntilNobodyHoldsIt(t *testing.T) {
	var s Set
	if s.Held("a") != nil {
		t.Fatal("a name is held that nobody has held")
	}
	s.Hold("a")
	s.Hold("a")
	s.Hold("b")
	ends := s.Held("a")
	s.Release("a")
	select {
	case <-ends:
		t.Fatal("it ends while somebody holds it")
	default:
	}
	s.Release("a")
	<-ends
	if s.Held("a") != nil || s.Held("b") == nil {
		t.Fatal(s.held)
	}
}
