package daemon

import "github.com/nvmf-go/nvmf/internal/providers"

// Providers opens fabric providers by name, each once.
type Providers = providers.Set

// DefaultProviders are those of this build.
func DefaultProviders() *Providers { return providers.Default() }
