"""Files of networks: `format` chooses the reader, `xml_text` reads XML within limits."""
