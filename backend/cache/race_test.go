//go:build race

package cache

func init() { underRace = true }
