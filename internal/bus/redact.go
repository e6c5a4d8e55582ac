package bus

import "net/url"

// redact returns address without user, password or token.
func redact(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.User == nil {
		return address
	}
	u.User = nil
	return u.String()
}
