package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// configs/reference.yaml promises every key there is.
func TestReferenceIsComplete(t *testing.T) {
	b, err := os.ReadFile("../../configs/reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	walkKeys(reflect.TypeFor[File](), "", func(path, key string) {
		if !strings.Contains(string(b), key+":") {
			missing = append(missing, path)
		}
	})
	if len(missing) > 0 {
		t.Errorf("configs/reference.yaml lacks %s", strings.Join(missing, ", "))
	}
}

func walkKeys(t reflect.Type, path string, f func(path, key string)) {
	for i := range t.NumField() {
		key := keyOf(t.Field(i))
		if key == "" {
			continue
		}
		at := join(path, key)
		f(at, key)
		ft := t.Field(i).Type
		if ft.Kind() == reflect.Slice {
			ft = ft.Elem()
		}
		if ft.Kind() == reflect.Struct && ft.PkgPath() == t.PkgPath() && ft != reflect.TypeFor[Hosts]() {
			walkKeys(ft, at, f)
		}
	}
}
