package median

import (
	"reflect"
	"testing"
)

func TestOf(t *testing.T) {
	for _, tt := range []struct {
		list []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{5, 1, 3}, 3}, {[]float64{4, 1, 3, 2}, 2.5}} {
		before := append([]float64(nil), tt.list...)
		if got := Of(tt.list); got != tt.want {
			t.Errorf("Of(%v) = %v, want %v", before, got, tt.want)
		}
		if !reflect.DeepEqual(before, append([]float64(nil), tt.list...)) {
			t.Errorf("Of has changed %v to %v", before, tt.list)
		}
	}
}
